"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const arms = report.arms;
  const charts = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colourOf = (arm) => colour(arms[arm].baseline ? "--base" : `--c${arm % 8}`);
  const faint = (hex) => hex + "2e";
  // Each arm has its own dashes, because not everyone sees the colours. Nine and eight: an arm that has the colour of
  // another one has other dashes.
  const dashes = [[7, 3], [2, 2], [10, 3, 2, 3], [14, 4], [6, 2, 1, 2, 1, 2], [1, 3], [12, 3, 5, 3], [4, 6], [3, 2, 9, 2]];
  const others = arms.filter((arm) => !arm.baseline);
  const dashesOf = (arm) => (arms[arm].baseline ? [] : dashes[others.indexOf(arms[arm]) % dashes.length]);

  const si = (value, unit) => {
    if (value === 0) return `0 ${unit}`;
    const prefixes = ["", "k", "M", "G", "T", "P"];
    const power = Math.max(0, Math.min(prefixes.length - 1, Math.floor(Math.log10(Math.abs(value)) / 3 + 1e-9)));
    return `${parseFloat((value / 1000 ** power).toPrecision(3))} ${prefixes[power]}${unit}`.trim();
  };
  const axes = {
    tokens: (value) => si(value, ""),
    bytes: (value) => si(value, "B"),
    seconds: (value) => (value < 120 ? `${parseFloat(value.toPrecision(3))} s` : value < 7200
      ? `${parseFloat((value / 60).toPrecision(3))} min` : `${parseFloat((value / 3600).toPrecision(3))} h`),
  };

  // A logarithmic axis shows only these labels, so that they do not overlap.
  const isRound = (value) => [1, 2, 5].some((digit) => {
    const power = Math.log10(value / digit);
    return Math.abs(power - Math.round(power)) < 1e-6;
  });

  // Three datasets for an arm: its lowest seed, its highest with the band between, and the mean.
  const datasetsOf = (arm, x) => {
    const points = arms[arm].band.filter((p) => p[x] !== null && (x !== "bytes" || p[x] > 0));
    const data = (y) => points.map((p) => ({ x: p[x], y: p[y] }));
    const several = arms[arm].runs.length > 1;
    const plain = { arm, pointRadius: 0, pointHitRadius: 0, borderWidth: 0 };
    const band = several ? [
      { ...plain, role: "low", label: "lowest seed", data: data("low"), fill: false },
      { ...plain, role: "high", label: "highest seed", data: data("high"), fill: "-1" },
    ] : [];
    return [...band, {
      arm, role: "mean", label: arms[arm].name, data: data("loss"), fill: false,
      borderWidth: arms[arm].baseline ? 2.5 : 1.8, borderDash: dashesOf(arm),
      pointRadius: points.length < 3 ? 4 : 1.5, pointHoverRadius: 5, pointHitRadius: 8,
    }];
  };

  const paint = (chart) => {
    for (const set of chart.data.datasets) {
      if (set.arm === undefined) continue;
      const own = colourOf(set.arm);
      set.borderColor = own;
      set.backgroundColor = set.role === "high" ? faint(own) : own;
      set.pointBackgroundColor = own;
    }
    if (chart.paintMore) chart.paintMore();
    for (const scale of Object.values(chart.options.scales)) {
      scale.ticks.color = scale.title.color = colour("--soft");
      scale.grid.color = colour("--grid");
      scale.grid.borderColor = colour("--line");
    }
    chart.options.plugins.legend.labels.color = colour("--ink");
    chart.update(); // "none" would leave the points their old colour
  };

  // Leaves out the first tenth of training: the steep fall in it would flatten every difference.
  const highestLoss = () => {
    const tokens = Math.max(...arms.flatMap((arm) => arm.band.map((p) => p.tokens)));
    const late = arms.flatMap((arm) => arm.band.filter((p) => p.tokens >= tokens / 10).map((p) => p.high));
    return late.length > 0 ? Math.max(...late) : undefined;
  };

  const scale = (title, more) => ({
    title: { display: true, text: title }, ticks: { maxRotation: 0, autoSkipPadding: 16 }, grid: {}, ...more,
  });

  // Chart.js draws the lines of a legend without their dashes.
  const dashedLabels = (chart) => Chart.defaults.plugins.legend.labels.generateLabels(chart)
    .map((item) => ({ ...item, lineDash: chart.data.datasets[item.datasetIndex].borderDash, lineWidth: 2 }));

  const curves = (id, x, title, type) => {
    const chart = new Chart(document.getElementById(id), {
      type: "line",
      data: { datasets: arms.flatMap((_, arm) => datasetsOf(arm, x)) },
      options: {
        animation: false, maintainAspectRatio: false, parsing: false, normalized: true,
        interaction: { mode: "nearest", axis: "xy", intersect: false },
        scales: {
          x: scale(title, {
            type, ticks: {
              maxRotation: 0, autoSkipPadding: 16,
              callback: (value) => (type === "logarithmic" && !isRound(value) ? null : axes[x](value)),
            },
          }),
          y: scale("loss, nats per token"),
        },
        plugins: {
          legend: {
            position: "bottom", onClick: null,
            labels: { usePointStyle: true, pointStyle: "line", pointStyleWidth: 40, generateLabels: dashedLabels, filter: (item, data) => data.datasets[item.datasetIndex].role === "mean" },
          },
          tooltip: {
            filter: (item) => item.dataset.role === "mean",
            callbacks: {
              title: (items) => (items.length > 0 ? axes[x](items[0].parsed.x) : ""),
              label: (item) => `${item.dataset.label}: ${item.parsed.y.toFixed(4)}`,
            },
          },
        },
      },
    });
    charts.push(chart);
  };

  const differences = () => {
    const compared = arms.map((arm, i) => ({ ...arm.difference, name: arm.name, arm: i, there: arm.difference !== null }))
      .filter((d) => d.there);
    const percent = (part) => 100 * part;
    const interval = (d) => (d.noise === null ? null : [percent(d.relative - d.noise), percent(d.relative + d.noise)]);
    const chart = new Chart(document.getElementById("by-arm"), {
      type: "bar",
      data: {
        labels: compared.map((d) => d.name),
        datasets: [
          { role: "interval", label: "interval", data: compared.map(interval), barThickness: 12, borderWidth: 1, order: 2 },
          { role: "difference", label: "mean", type: "line", showLine: false, data: compared.map((d) => percent(d.relative)),
            pointRadius: 5, pointHoverRadius: 6, order: 1 },
        ],
      },
      options: {
        indexAxis: "y", animation: false, maintainAspectRatio: false,
        scales: {
          x: scale("difference in %; to the right is worse", { grace: "8%", suggestedMin: 0, suggestedMax: 0 }),
          y: scale("", { ticks: { autoSkip: false }, offset: true }),
        },
        plugins: {
          legend: { display: false, labels: {} },
          tooltip: {
            callbacks: {
              label: (item) => {
                const d = compared[item.dataIndex];
                const noise = d.noise === null ? "noise unknown" : `noise ${percent(d.noise).toFixed(2)} %`;
                return `${percent(d.relative).toFixed(2)} %, ${noise}, ${d.seeds} seed${d.seeds === 1 ? "" : "s"}`;
              },
            },
          },
        },
      },
    });
    chart.paintMore = () => {
      const own = compared.map((d) => colourOf(d.arm));
      const [bars, means] = chart.data.datasets;
      bars.backgroundColor = own.map((c) => c + "40");
      bars.borderColor = own;
      means.pointBackgroundColor = means.pointBorderColor = own;
      chart.options.scales.x.grid.color = (line) => colour(line.tick && line.tick.value === 0 ? "--soft" : "--grid");
    };
    charts.push(chart);
  };

  curves("by-tokens", "tokens", "tokens of all replicas", "linear");
  curves("by-seconds", "seconds", "time", "linear");
  curves("by-bytes", "bytes", "bytes, logarithmic", "logarithmic");
  differences();

  const whole = document.getElementById("whole");
  const clip = () => {
    for (const chart of charts.slice(0, 3)) {
      chart.options.scales.y.max = whole.checked ? undefined : highestLoss();
      chart.update("none");
    }
  };
  for (const box of document.querySelectorAll("input[name=arm]")) {
    box.addEventListener("change", () => {
      for (const chart of charts.slice(0, 3)) {
        chart.data.datasets.forEach((set, i) => { if (set.arm === Number(box.value)) chart.setDatasetVisibility(i, box.checked); });
        chart.update("none");
      }
    });
  }
  const repaint = () => charts.forEach(paint);
  whole.addEventListener("change", clip);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  matchMedia("print").addEventListener("change", () => { repaint(); charts.forEach((chart) => chart.resize()); });
  addEventListener("afterprint", () => { charts.forEach((chart) => chart.resize()); repaint(); });
  repaint();
  clip();
})();
