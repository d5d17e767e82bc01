// Search in pages that are opened as files: a browser starts no worker from a file, so a hidden frame runs its script.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.waiting = []; // until the script has loaded
      const script = this.inside.document.createElement("script");
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = undefined;
        waiting.forEach((data) => this.postMessage(data));
      };
      script.src = url;
      this.inside.document.body.append(script);
    }
    postMessage(data) {
      if (this.waiting) {
        this.waiting.push(data);
      } else {
        this.inside.dispatchEvent(new MessageEvent("message", { data }));
      }
    }
  };
}
