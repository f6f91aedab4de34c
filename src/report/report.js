/* Draws the pictures of the page from the JSON block #report-data. It needs no library and no
   network: curves are inline SVG, the timeline is a canvas. A picture that cannot be drawn says so
   and does not stop the others. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const svgName = "http" + "://www.w3.org/2000/svg"; // a name, not an address: nothing is fetched
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const drawn = []; // to be drawn again when the width or the colours change

  // ---- text ----
  function trim(value, digits) {
    return value.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  }
  function scaled(value, step, units) {
    let i = 0;
    while (i < units.length - 1 && Math.abs(value) >= step * 0.9995) { value /= step; i++; }
    return trim(value, Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2) + (units[i] ? " " + units[i] : "");
  }
  const bytesText = (v) => scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  const countText = (v) => scaled(v, 1000, ["", "k", "M", "G", "T"]);
  const timeText = (us) => us >= 1e6 ? trim(us / 1e6, 3) + " s" : us >= 1000 ? trim(us / 1000, us >= 1e5 ? 1 : 2) + " ms"
    : trim(us, 1) + " \u00b5s";
  const numberText = (v) => v === 0 ? "0" : Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5 ? v.toExponential(2).replace(/\.?0*e/, "e") : trim(v, 4);
  const plainName = (name) => name.replace(/_/g, " ");

  // ---- elements ----
  function element(name, attributes, text) {
    const made = document.createElement(name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  function shape(parent, name, attributes, text) {
    const made = document.createElementNS(svgName, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }
  function ticks(low, high, count) {
    const raw = (high - low) / Math.max(1, count), power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
    return out;
  }

  // ---- curves over steps ----
  /* series: [{name, kind: "line" | "band" | "dots" | "limit", second, points: [[x, low, mean, high]]}] */
  function curves(figure, title, series, options) {
    const all = series.flatMap((s) => s.points);
    if (all.length === 0) return false;
    const caption = element("figcaption", {});
    caption.append(element("b", {}, title));
    const holder = element("div", {}), readout = element("div", {class: "readout", "aria-live": "polite"}, "\u00a0");
    figure.append(caption, holder, readout);
    const steps = series.filter((s) => s.kind !== "limit").flatMap((s) => s.points.map((p) => p[0]));
    let x0 = Math.min(...range(steps)), x1 = Math.max(...range(steps));
    if (x0 === x1) { x0 -= 1; x1 += 1; }
    // A limit that is far from all that was measured would squeeze the curve: it stays out of the picture.
    const measured = range(series.filter((s) => s.kind !== "limit").flatMap((s) => s.points.map((p) => p[3])))[1];
    for (const s of series) s.isFar = s.kind === "limit" && s.points[0][2] > 2 * measured;
    for (const s of series) if (s.legend) caption.append(chip(s.kind === "limit" ? "stall" : s.second ? "second" : "accent", s.legend + (s.isFar ? ", beyond the picture" : ""), s.kind === "dots" ? "round" : "thin"));
    const inside = series.filter((s) => !s.isFar).flatMap((s) => s.points);
    const lows = range(inside.map((p) => p[1])), highs = range(inside.map((p) => p[3]));
    let y0 = options.zero ? 0 : lows[0], y1 = highs[1];
    if (!(y1 > y0)) { y1 = y0 + (Math.abs(y0) || 1) * 0.1; if (!options.zero) y0 -= (Math.abs(y0) || 1) * 0.1; }
    const room = (y1 - y0) * 0.05;
    y1 += room;
    if (!options.zero) y0 -= room;

    function draw() {
      const width = Math.max(240, holder.clientWidth), height = options.height;
      const left = 52, right = 12, top = 8, bottom = 30;
      const px = (x) => left + (x - x0) / (x1 - x0) * (width - left - right);
      const py = (y) => top + (y1 - y) / (y1 - y0) * (height - top - bottom);
      holder.textContent = "";
      const svg = shape(holder, "svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": title + " over steps; the table below has the figures. Arrow keys read points."});
      for (const y of ticks(y0, y1, height > 140 ? 5 : 4)) {
        shape(svg, "line", {class: "axis", x1: left, x2: width - right, y1: py(y), y2: py(y)});
        shape(svg, "text", {x: left - 6, y: py(y) + 4, "text-anchor": "end"}, options.text(y));
      }
      for (const x of ticks(x0, x1, width / 110)) {
        if (x !== Math.round(x) || x < 0 || px(x) > width - right - 44) continue; // "step" stands there
        shape(svg, "text", {x: px(x), y: height - 12, "text-anchor": px(x) - left < 8 ? "start" : "middle"}, countText(x));
      }
      shape(svg, "text", {x: width - right, y: height - 12, "text-anchor": "end", class: "strong"}, "step");
      for (const s of series) {
        if (s.isFar) continue;
        if (s.kind === "limit") {
          shape(svg, "line", {class: "limit", x1: left, x2: width - right, y1: py(s.points[0][2]), y2: py(s.points[0][2])});
          continue;
        }
        const at = (i) => s.points.map((p) => px(p[0]).toFixed(1) + "," + py(p[i]).toFixed(1));
        if (s.kind === "band")
          shape(svg, "polygon", {class: "band", points: at(3).concat(at(1).reverse()).join(" ")});
        if (s.points.length > 1)
          shape(svg, "polyline", {class: s.second ? "curve second" : "curve", points: at(2).join(" ")});
        if (s.kind === "dots" || s.points.length === 1)
          for (const p of s.points) shape(svg, "circle", {class: "dot", cx: px(p[0]), cy: py(p[2]), r: 4});
      }
      const cursor = shape(svg, "line", {class: "cursor", y1: top, y2: height - bottom, visibility: "hidden"});
      const main = series.find((s) => s.kind !== "limit");
      let chosen = main.points.length - 1;
      function show(index, isFirst) {
        chosen = Math.max(0, Math.min(main.points.length - 1, index));
        const p = main.points[chosen];
        cursor.setAttribute("x1", px(p[0]));
        cursor.setAttribute("x2", px(p[0]));
        cursor.setAttribute("visibility", isFirst ? "hidden" : "visible");
        readout.textContent = options.read(p);
      }
      show(chosen, true);
      svg.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect(), x = x0 + ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * (x1 - x0);
        let best = 0;
        main.points.forEach((p, i) => { if (Math.abs(p[0] - x) < Math.abs(main.points[best][0] - x)) best = i; });
        show(best);
      });
      svg.addEventListener("keydown", (event) => {
        if (event.key === "ArrowLeft") show(chosen - 1);
        else if (event.key === "ArrowRight") show(chosen + 1);
        else return;
        event.preventDefault();
      });
    }
    drawn.push(draw);
    draw();
    return true;
  }
  // The lowest and highest number of a list. Math.min(...list) would overflow the stack.
  function range(list) {
    let low = Infinity, high = -Infinity;
    for (const v of list) if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
    return [low, high];
  }
  const stepText = (row) => row[0] === row[1] ? "step " + row[0] : "steps " + row[0] + "\u2013" + row[1];
  // The rows of a series as points. Rows without a finite value are left out.
  const points = (rows, at) => rows.filter((r) => r[at + 1] !== null).map((r) => [(r[0] + r[1]) / 2, r[at], r[at + 1], r[at + 2], r]);

  function lossChart(figure) {
    const steps = points(data.steps.rows, 2), evals = points(data.evals.rows, 2), series = [];
    if (steps.length) series.push({kind: data.steps.lines_per_bin > 1 ? "band" : "line", points: steps, legend: "training"});
    if (evals.length) series.push({kind: "dots", second: true, points: evals, legend: "held out"});
    return curves(figure, "Loss, nats per token", series, {height: 260, text: numberText, read: (p) => {
      const near = evals.filter((e) => e[4][1] <= p[4][1]).pop();
      return stepText(p[4]) + ": loss " + numberText(p[2]) + (p[1] !== p[3] ? " (" + numberText(p[1]) + " to " + numberText(p[3]) + ")" : "")
        + (near ? "; held out " + numberText(near[2]) + " at step " + near[4][1] : "");
    }});
  }
  function rateChart(figure) {
    return curves(figure, "Learning rate", [{kind: "line", second: true, points: points(data.steps.rows, 5)}],
      {height: 130, zero: true, text: numberText, read: (p) => stepText(p[4]) + ": " + numberText(p[2])});
  }
  function speedChart(figure) {
    const steps = points(data.steps.rows, 8), series = [], plan = data.plan;
    if (!steps.length) return false;
    series.push({kind: data.steps.lines_per_bin > 1 ? "band" : "line", points: steps, legend: "measured"});
    if (plan.tokens_per_second > 0) {
      const rate = plan.tokens_per_second;
      series.push({kind: "limit", points: [[0, rate, rate, rate]], legend: "predicted: " + countText(rate)});
    }
    return curves(figure, "Tokens per second", series, {height: 200, zero: true, text: countText,
      read: (p) => stepText(p[4]) + ": " + countText(p[2]) + (p[1] !== p[3] ? " (" + countText(p[1]) + " to " + countText(p[3]) + ")" : "") + " tokens/s"});
  }

  // ---- memory over the predicted step ----
  const kindColours = {params: "k-forward", grads: "k-backward", optimizer: "k-update", activations: "k-read",
    inner_activations: "k-recompute", other: "k-other"};
  function memoryChart(figure) {
    const memory = data.plan.memory_over_step;
    if (!memory) return false;
    const fields = memory.fields.slice(1), used = new Set();
    const length = memory.seconds * 1e6, tiers = ["device", "host", "nvme"].filter((t) => memory[t] && memory[t].points.length);
    for (const tier of tiers) for (const p of memory[tier].points) fields.forEach((f, i) => { if (p[i + 1] > 0) used.add(i); });
    const legend = element("p", {class: "legend"});
    for (const i of [...used].sort()) legend.append(chip(kindColours[fields[i]] || "k-other", plainName(fields[i])));
    figure.append(legend);
    for (const tier of tiers) memoryTier(figure, tier, memory[tier], fields, [...used].sort(), length);
    return tiers.length > 0;
  }
  function chip(name, text, form) {
    const out = element("span", {}), mark = element("i", {class: form || ""});
    mark.style.background = "var(--" + name + ")";
    out.append(mark, text);
    return out;
  }
  function memoryTier(figure, name, tier, fields, used, length) {
    const budget = (data.plan.budget_bytes || {})[name] || 0;
    const by = ((data.plan.memory || {})[name] || {}).at_peak;
    const top = Math.max(tier.highest_bytes, tier.peak_in_use_bytes, 1), shows = budget > 0 && budget <= 2 * top;
    const caption = element("figcaption", {});
    caption.append(element("b", {}, name), element("span", {}, "at most " + bytesText(tier.peak_in_use_bytes) + " in use at " + timeText(tier.peak_at_us)));
    caption.append(element("span", {}, "budget " + bytesText(budget) + (shows ? "" : ", beyond the picture")));
    if (tier.intervals > tier.points.length)
      caption.append(element("span", {}, tier.intervals + " changes, the fullest moment of each of " + tier.points.length + " spans"));
    const holder = element("div", {}), readout = element("div", {class: "readout"}, by ? "The highest byte is of: " + by : "\u00a0");
    figure.append(caption, holder, readout);
    const y1 = Math.max(top, shows ? budget : 0) * 1.08, rows = tier.points;
    function draw() {
      const width = Math.max(240, holder.clientWidth), height = 170, left = 66, right = 12, head = 8, bottom = 28;
      const px = (t) => left + t / length * (width - left - right), py = (v) => head + (1 - v / y1) * (height - head - bottom);
      holder.textContent = "";
      const svg = shape(holder, "svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Memory of tier " + name + " over the predicted step"});
      const unit = Math.pow(1024, Math.floor(Math.log(y1) / Math.log(1024)));
      for (const y of ticks(0, y1 / unit, 4)) {
        shape(svg, "line", {class: "axis", x1: left, x2: width - right, y1: py(y * unit), y2: py(y * unit)});
        shape(svg, "text", {x: left - 6, y: py(y * unit) + 4, "text-anchor": "end"}, bytesText(y * unit));
      }
      const marks = ticks(0, length, width / 110);
      marks.forEach((t, i) => shape(svg, "text", {x: px(t), y: height - 8, "text-anchor": i === 0 ? "start" : i === marks.length - 1 && px(t) > width - 40 ? "end" : "middle"}, timeText(t)));
      const base = rows.map(() => 0);
      for (const i of used) {
        let up = "", back = "";
        rows.forEach((row, r) => {
          const from = px(row[0]).toFixed(1), to = px(r + 1 < rows.length ? rows[r + 1][0] : length).toFixed(1);
          const low = py(base[r]).toFixed(1), high = py(base[r] + row[i + 1]).toFixed(1);
          up += `${from},${high} ${to},${high} `;
          back = `${to},${low} ${from},${low} ` + back;
          base[r] += row[i + 1];
        });
        shape(svg, "polygon", {points: up + back, fill: "var(--" + (kindColours[fields[i]] || "k-other") + ")"});
      }
      if (shows) {
        shape(svg, "line", {class: "limit", x1: left, x2: width - right, y1: py(budget), y2: py(budget)});
      }
      const x = px(Math.min(tier.peak_at_us, length));
      shape(svg, "path", {d: `M${x - 5},${py(tier.peak_in_use_bytes) - 10} h10 l-5,8 z`, fill: "var(--text)"});
      const cursor = shape(svg, "line", {class: "cursor", y1: head, y2: height - bottom, visibility: "hidden"});
      svg.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect(), t = ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * length;
        let r = 0;
        while (r + 1 < rows.length && rows[r + 1][0] <= t) r++;
        cursor.setAttribute("x1", px(Math.max(0, Math.min(length, t))));
        cursor.setAttribute("x2", px(Math.max(0, Math.min(length, t))));
        cursor.setAttribute("visibility", "visible");
        readout.textContent = timeText(Math.max(0, t)) + ": " + used.filter((i) => rows[r][i + 1] > 0).map((i) => plainName(fields[i]) + " " + bytesText(rows[r][i + 1])).join(", ");
      });
    }
    drawn.push(draw);
    draw();
  }

@TIMELINE_SCRIPT@
  // ---- wide tables ----
  // A line above a table that is wider than the page, for as long as columns are out of sight.
  for (const table of document.querySelectorAll(".scroll")) {
    const hint = element("p", {class: "hint", "aria-hidden": "true"}, "more columns: scroll the table sideways \u2192");
    table.before(hint);
    const draw = () => {
      const hidden = table.scrollWidth - table.clientWidth;
      hint.hidden = hidden <= 1;
      table.classList.toggle("more", hidden > 1 && table.scrollLeft < hidden - 1);
    };
    table.addEventListener("scroll", draw, {passive: true});
    const folded = table.closest("details");
    if (folded) folded.addEventListener("toggle", draw);
    drawn.push(draw);
    draw();
  }

  // ---- all pictures ----
  const charts = {loss: lossChart, lr: rateChart, speed: speedChart, timeline: timelineChart, memory: memoryChart};
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    try {
      if (!charts[figure.dataset.chart](figure)) figure.hidden = true;
    } catch (problem) {
      figure.textContent = "This picture could not be drawn: " + problem.message;
      figure.className = "none";
    }
  }
  let width = 0, waiting = 0;
  function redraw() {
    waiting = 0;
    for (const draw of drawn) draw();
  }
  function soon() {
    if (!waiting) waiting = requestAnimationFrame(redraw);
  }
  new ResizeObserver(() => {
    if (document.body.clientWidth !== width) { width = document.body.clientWidth; soon(); }
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
})();
