"use strict";
(() => {
  const pollEvery = 1000, patience = 5000; // milliseconds
  const nothing = "\u2013";
  const byId = (id) => document.getElementById(id);

  // ---- words ----

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const words = (value, format) => (isNumber(value) ? format(value) : nothing);
  const whole = (value) => words(value, (v) => Math.round(v).toLocaleString("en-US"));
  const fixed = (digits) => (value) => words(value, (v) => v.toFixed(digits));
  const percent = (value) => words(value, (v) => `${Math.round(100 * Math.min(1, Math.max(0, v)))} %`);
  const si = (unit) => (value) => words(value, (v) => {
    const prefixes = ["", "k", "M", "G", "T", "P"];
    let i = 0;
    for (; v >= 999.5 && i + 1 < prefixes.length; ++i) v /= 1000;
    return `${i > 0 && v < 9.95 ? v.toFixed(1) : Math.round(v)} ${prefixes[i]}${unit}`.trim();
  });
  const count = si("");
  const bitsPerSecond = (bytes) => si("bit/s")(isNumber(bytes) ? 8 * bytes : null);
  const duration = (value) => words(value, (v) => {
    if (v < 99.5) return `${Math.round(v)} s`;
    if (v < 5970) return `${Math.round(v / 60)} min`;
    return v < 172800 ? `${(v / 3600).toFixed(1)} h` : `${(v / 86400).toFixed(1)} days`;
  });
  const clock = (at) => at.toLocaleTimeString("en-GB");
  // With the date, unless it is today's.
  const moment = (at) => (at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `) + clock(at);
  const short = (value) => words(value, (v) => `${v.toFixed(Math.abs(v) < 9.95 ? 2 : 1)} s`);
  const milliseconds = (value) => words(value, (v) => `${v.toFixed(v < 9.95 ? 1 : 0)} ms`);
  const plural = (n, one) => `${whole(n)} ${one}${n === 1 ? "" : "s"}`;

  // ---- elements: text from members is only ever set as text ----

  const put = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  // Gives `parent` exactly `n` children, and keeps those that it has, so that a selection survives.
  const children = (parent, n, make) => {
    while (parent.children.length > n) parent.lastElementChild.remove();
    while (parent.children.length < n) parent.append(make());
    return parent.children;
  };
  const element = (name, ...inner) => {
    const out = document.createElement(name);
    out.append(...inner);
    return out;
  };
  const asCell = (cell) => (typeof cell === "object" ? cell : { text: cell });
  const makeRow = (cells) => () => {
    const row = document.createElement("tr");
    cells.map(asCell).forEach((cell, i) => {
      const out = element(i === 0 ? "th" : "td");
      if (i === 0) out.scope = "row";
      if (cell.left) out.className = "text";
      if ("share" in cell) {
        out.className = "share";
        out.append(element("i"), element("span"));
      }
      row.append(out);
    });
    return row;
  };
  const left = (text) => ({ text, left: true });
  // Rows of one shape. Cells: a text, or {text, left} or {text, share}; a share is also drawn as a bar.
  const fill = (id, rows) => {
    const body = byId(id).tBodies[0];
    const own = children(body, rows.length, rows.length > 0 ? makeRow(rows[0]) : null);
    rows.forEach((cells, r) => cells.map(asCell).forEach((cell, c) => {
      const out = own[r].children[c];
      if (!("share" in cell)) return put(out, cell.text);
      put(out.lastElementChild, cell.text);
      out.firstElementChild.style.width = `calc(${100 * Math.min(1, Math.max(0, cell.share || 0))}% - 16px)`;
      out.firstElementChild.hidden = !isNumber(cell.share) || cell.share <= 0;
    }));
  };

  // ---- parts of the page ----

  const isInView = (member) => member.state === "member" || member.state === "done";
  // The view's trainers.
  const trainersOf = (status) => status.members.filter((member) => member.kind === "trainer" && isInView(member));
  const sum = (members, key) => members.reduce((total, member) => total + (member[key] || 0), 0);
  const mean = (members, key) => {
    const known = members.filter((member) => isNumber(member[key]));
    return known.length > 0 ? sum(known, key) / known.length : null;
  };

  // Steps and times of the last minute, for the speed.
  let looks = [];
  const speed = (step) => {
    const now = performance.now() / 1000;
    if (looks.length > 0 && step < looks[looks.length - 1].step) looks = [];
    looks.push({ step, now });
    while (looks.length > 2 && looks[1].now < now - 60) looks.shift();
    const first = looks[0];
    return now - first.now >= 3 ? (step - first.step) / (now - first.now) : 0;
  };

  const showHead = (status) => {
    const perSecond = speed(status.step);
    const done = status.steps > 0 ? Math.min(1, status.step / status.steps) : 0;
    put(byId("run"), status.run);
    document.title = `${Math.floor(100 * done)} % \u00b7 ${status.run}`;
    put(byId("phase"), `${status.phase}, ${status.participating} of ${plural(status.replicas, "replica")} in, view ${status.view}`);
    byId("progress").value = done;
    const rate = perSecond > 0
      ? `, ${perSecond < 9.95 ? perSecond.toFixed(2) : whole(perSecond)} steps/s, ${duration((status.steps - status.step) / perSecond)} left` : "";
    put(byId("progress-text"), `Step ${whole(status.step)} of ${whole(status.steps)} (${(100 * done).toFixed(1)} %)${rate}`);
  };

  const nextCheckpoint = (next) => {
    const at = isNumber(next.step) ? `at step ${whole(next.step)}` : "";
    const within = isNumber(next.seconds) ? `in ${duration(next.seconds)}` : "";
    if (within && at) return [within, `or ${at}`];
    return within || at ? [within || at, ""] : [nothing, ""];
  };

  const showNow = (run) => {
    const { status } = run;
    const trainers = trainersOf(status);
    const evaluation = status.evaluation;
    const next = nextCheckpoint(run.next_checkpoint);
    const outer = status.outer_steps;
    const tiles = [
      ["Evaluation loss", evaluation ? fixed(4)(evaluation.loss) : nothing, evaluation ? `at step ${whole(evaluation.step)}` : "none yet"],
      ["Training loss", fixed(4)(mean(trainers, "loss")), "mean of replicas"],
      ["Utilization", percent(mean(trainers, "utilization")), "time in compute"],
      ["Tokens", `${count(sum(trainers, "tokens_per_second"))}/s`, "all replicas"],
      ["Sending", bitsPerSecond(sum(status.members, "wire_bytes_per_second")), "all members"],
      ["Outer steps", outer ? `${fixed(2)(outer.gain)} gain` : nothing, outer ? `correlation ${fixed(2)(outer.correlation)}` : "not measured yet"],
      ["Last checkpoint", status.checkpoint > 0 ? `step ${whole(status.checkpoint)}` : "none", "on all replicas"],
      ["Next checkpoint", next[0], next[1]],
    ];
    const own = children(byId("now"), tiles.length, () => element("div", element("dt"), element("dd"), element("dd")));
    tiles.forEach((texts, t) => texts.forEach((text, i) => put(own[t].children[i], text)));
  };

  // Slow paths and relays, in words.
  const notes = (status) => [
    ...status.slow_paths.map(({ from, to }) => (from === "" ? `All paths to ${to} are slow.`
      : to === "" ? `All paths from ${from} are slow.` : `The path from ${from} to ${to} is slow.`)),
    ...status.relays.map(({ by, between }) => `${by} relays between ${between[0]} and ${between[1]}.`),
  ];
  const alertsOf = (status) => [
    ...(status.obstacle ? [`Rounds do not commit: ${status.obstacle}`] : []),
    ...(isNumber(status.settings.paused_after) ? [`Paused after step ${whole(status.settings.paused_after)}.`] : []),
    ...notes(status),
  ];
  // A screen reader reads each alert that is added: one that stays keeps its element.
  const showAlerts = (texts) => {
    const alerts = byId("alerts");
    const old = new Map([...alerts.children].map((alert) => [alert.textContent, alert]));
    const added = (text) => {
      const out = element("p", text);
      out.className = "alert";
      return out;
    };
    const wanted = [...new Set(texts)].map((text) => old.get(text) || added(text));
    for (const alert of old.values()) if (!wanted.includes(alert)) alert.remove();
    wanted.forEach((alert, i) => { if (alerts.children[i] !== alert) alerts.insertBefore(alert, alerts.children[i] || null); });
  };

  const stateOf = (member) => {
    if (member.silent_seconds >= 3) return `silent for ${duration(member.silent_seconds)}`;
    return { member: "in the view", ready: "ready to join" }[member.state] || member.state;
  };
  const lagOf = (member, foremost) => {
    const rounds = Math.max(0, ...member.rounds_lag);
    const steps = foremost - member.step;
    const texts = [];
    if (steps > 0) texts.push(plural(steps, "step"));
    if (rounds > 0) texts.push(plural(rounds, "round"));
    return texts.length > 0 ? texts.join(", ") : "none";
  };
  const showMembers = (status) => {
    const foremost = Math.max(0, ...trainersOf(status).map((member) => member.step));
    fill("members", status.members.map((member) => {
      const trains = member.kind === "trainer";
      const ifTrains = (text) => (trains ? text : nothing);
      return [
        member.name, left(member.site || nothing), left(trains ? "trainer" : "reducer"), left(stateOf(member)),
        ifTrains(whole(member.step)), trains && isInView(member) ? lagOf(member, foremost) : nothing, ifTrains(fixed(4)(member.loss)),
        { text: ifTrains(percent(member.utilization)), share: trains ? member.utilization : null },
        ifTrains(count(member.tokens_per_second)), bitsPerSecond(member.wire_bytes_per_second),
        bitsPerSecond(member.uplink_bytes_per_second), member.checkpoint > 0 ? whole(member.checkpoint) : nothing,
      ];
    }));
  };

  const showRounds = (status) => {
    const newest = new Map();
    for (const round of status.rounds) newest.set(round.fragment, [...(newest.get(round.fragment) || []), round]);
    const rows = [];
    let inFlight = 0;
    for (const rounds of newest.values()) {
      const committed = rounds.filter((round) => isNumber(round.took_seconds)).slice(-1);
      const flying = rounds.filter((round) => !isNumber(round.took_seconds) && (committed.length === 0 || round.round > committed[0].round));
      inFlight += flying.length;
      for (const round of [...flying, ...(flying.length === 0 ? committed : [])]) {
        const late = isNumber(round.late_seconds) && round.late_seconds > 0 ? `, ${short(round.late_seconds)} late` : "";
        rows.push([
          whole(round.fragment), whole(round.round), whole(round.sent_step), whole(round.apply_step),
          `${duration(round.sent_seconds_ago)} ago`,
          left(isNumber(round.took_seconds) ? `took ${short(round.took_seconds)}${late}` : "in flight"),
        ]);
      }
    }
    fill("rounds", rows);
    put(byId("rounds-text"), rows.length === 0 ? "No round was sent yet."
      : `${plural(inFlight, "round")} in flight. For fragments with none, the newest round.`);
  };

  const showLinks = (run) => {
    fill("links", run.links.map((link) => [
      link.from, left(link.to), milliseconds(link.round_trip_ms), milliseconds(link.shortest_round_trip_ms),
      bitsPerSecond(link.bytes_per_second), left(link.slow ? "slow" : "ok"),
    ]));
    const more = run.links_left_out > 0 ? `${whole(run.links_left_out)} more are not listed. ` : "";
    put(byId("links-text"), run.links.length === 0 ? "No member has reported its paths yet."
      : `${more}A path has a rate once it was full for a while.`);
  };

  const showLines = (lines) => {
    const own = children(byId("lines"), lines.length, () => element("li", element("time"), element("span")));
    lines.forEach((line, i) => {
      const at = new Date(1000 * line.time);
      put(own[i].firstElementChild, moment(at));
      own[i].firstElementChild.dateTime = at.toISOString();
      put(own[i].lastElementChild, line.text);
    });
  };

  // ---- the chart ----

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const points = (pairs) => pairs.map(([x, y]) => ({ x, y }));
  const scale = (title, more) => ({
    title: { display: true, text: title }, ticks: { maxRotation: 0, autoSkipPadding: 16 }, grid: {}, ...more,
  });
  // Chart.js draws the lines of a legend without their dashes.
  const dashedLabels = (drawn) => Chart.defaults.plugins.legend.labels.generateLabels(drawn)
    .map((item) => ({ ...item, lineDash: drawn.data.datasets[item.datasetIndex].borderDash, lineWidth: 2 }));
  const chart = new Chart(byId("loss"), {
    type: "line",
    data: {
      datasets: [
        { label: "evaluation of the global parameters", data: [], borderWidth: 2, pointRadius: 3, order: 1 },
        { label: "training, mean of the replicas (dashed)", data: [], borderWidth: 1.3, borderDash: [4, 3], pointRadius: 0, order: 2 },
      ],
    },
    options: {
      animation: false, maintainAspectRatio: false, parsing: false, normalized: true,
      interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: {
        x: scale("step", { type: "linear", min: 0, ticks: { maxRotation: 0, autoSkipPadding: 16, precision: 0 } }),
        y: scale("loss, nats per token", { grace: "5%", ticks: { includeBounds: false } }),
      },
      plugins: {
        legend: { position: "bottom", onClick: null, labels: { usePointStyle: true, pointStyle: "line", pointStyleWidth: 30, generateLabels: dashedLabels } },
        tooltip: {
          callbacks: {
            title: (items) => (items.length > 0 ? `step ${whole(items[0].parsed.x)}` : ""),
            label: (item) => `${item.dataset.label}: ${item.parsed.y.toFixed(4)}`,
          },
        },
      },
    },
  });
  const paint = () => {
    const [evaluation, training] = chart.data.datasets;
    evaluation.borderColor = evaluation.backgroundColor = colour("--evaluation");
    training.borderColor = training.backgroundColor = colour("--training");
    for (const axis of Object.values(chart.options.scales)) {
      axis.ticks.color = axis.title.color = colour("--soft");
      axis.grid.color = colour("--grid");
      axis.grid.borderColor = colour("--line");
    }
    chart.options.plugins.legend.labels.color = colour("--ink");
    chart.update(); // "none" would leave the points their old colour
  };
  // Leaves out the first tenth of training: the steep fall in it would flatten everything after it.
  const clip = () => {
    const all = chart.data.datasets.flatMap((set) => set.data);
    const last = Math.max(0, ...all.map((point) => point.x));
    const late = all.filter((point) => point.x >= last / 10).map((point) => point.y);
    chart.options.scales.y.max = byId("whole").checked || late.length < 8 ? undefined : Math.max(...late);
  };
  // A curve in words; empty without points.
  const course = (what, curve) => {
    if (curve.length === 0) return "";
    const [first, last] = [curve[0], curve[curve.length - 1]].map(([step, loss]) => `${loss.toFixed(4)} at step ${whole(step)}`);
    return first === last ? `${what}: ${last}.` : `${what}: from ${first} to ${last}.`;
  };
  let drawn = "";
  const showCurves = (run) => {
    const now = JSON.stringify([run.evaluations, run.training]);
    if (now === drawn) return;
    drawn = now;
    chart.data.datasets[0].data = points(run.evaluations);
    chart.data.datasets[1].data = points(run.training);
    clip();
    chart.update();
    put(byId("loss-text"), `${course("Evaluation", run.evaluations) || "No step has been evaluated yet."} ${course("Training", run.training)}`.trim());
    const trainedUntil = (step) => run.training.findLast((point) => point[0] <= step);
    fill("evaluations", run.evaluations.slice(-50).reverse().map(([step, loss]) => [whole(step), fixed(4)(loss), fixed(4)((trainedUntil(step) || [])[1])]));
  };
  byId("whole").addEventListener("change", () => { clip(); chart.update("none"); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();

  // ---- asking ----

  // Alerts name the time since when, not for how long: a text that changes would be read out again.
  let answered = new Date(), busySince = null, alerts = [];
  const show = (answer) => {
    showLines(answer.lines);
    const { run } = answer;
    if (run === null) return;
    showHead(run.status);
    showNow(run);
    showMembers(run.status);
    showRounds(run.status);
    showLinks(run);
    showCurves(run);
    alerts = alertsOf(run.status);
    if (answer.age_seconds < 10) busySince = null;
    else busySince ||= new Date(Date.now() - 1000 * answer.age_seconds);
    showAlerts([...(busySince ? [`The coordinator is busy: this status is of ${moment(busySince)}.`] : []), ...alerts]);
    put(byId("updated"), `Updated ${clock(new Date())}; the page asks the coordinator every second.`);
  };
  const look = async () => {
    try {
      const response = await fetch(`status.json${location.search}`, { cache: "no-store", signal: AbortSignal.timeout(patience) });
      if (response.status === 403)
        showAlerts(["The coordinator refuses this page. Open the URL that it printed when it started.", ...alerts]);
      else if (!response.ok) throw new Error(`status ${response.status}`);
      else {
        show(await response.json());
        answered = new Date();
      }
    } catch {
      if (new Date() - answered > patience)
        showAlerts([`No answer from the coordinator since ${moment(answered)}. Below is the last status; the run may have ended.`, ...alerts]);
    }
    setTimeout(look, pollEvery);
  };
  look();
})();
