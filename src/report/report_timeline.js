  // ---- the timeline ----
  // Each lane has rows of measured ops, and below them a thin row of predicted ops.
  const kindColour = {read: "k-read", write: "k-write", h2d: "k-copy", d2h: "k-recompute", all_gather: "k-comm", reduce_scatter: "k-comm", dispatch: "k-comm", return: "k-comm",
    forward: "k-forward", recompute: "k-recompute", backward: "k-backward", grad_add: "k-close",
    grad_close: "k-close", norm: "k-close", update: "k-update", init: "k-update", working_copy: "k-update", commit: "k-other", other: "k-other"};
  const indexWord = {forward: "micro-batch", recompute: "micro-batch", backward: "micro-batch", grad_add: "tile",
    grad_close: "tile", update: "tile", init: "tile", working_copy: "tile"};

  // The lanes from top to bottom, with their events and predicted spans.
  function laneRows(step, plan) {
    const rows = [];
    data.lanes.forEach((name, lane) => {
      const events = step.events.filter((e) => e[0] === lane);
      const spans = plan && plan[name] ? plan[name].spans : [];
      if (events.length || spans.length)
        rows.push({name, events, spans, count: 1 + events.reduce((most, e) => Math.max(most, e[1]), 0), widest: range(events.map((e) => e[3]))[1]});
    });
    return rows;
  }

  function timelineChart(figure) {
    const step = data.timeline, plan = data.plan.timeline;
    if (!step) return false;
    // A predicted step that is much longer than the measured one would squeeze it: "All" then shows the
    // measured step, and "Plan" what was predicted.
    const measured = step.length_us || 1, whole = Math.max(measured, plan ? plan.seconds * 1e6 : 0), rows = laneRows(step, plan);
    const isFar = whole > 1.5 * measured, shown = isFar ? measured : whole;
    const kinds = [...new Set(step.events.map((e) => e[4]))].sort((a, b) => a - b).map((k) => data.kinds[k]);
    const legend = element("p", {class: "legend"}), byColour = {};
    for (const kind of kinds) (byColour[kindColour[kind]] = byColour[kindColour[kind]] || []).push(plainName(kind));
    for (const name in byColour) legend.append(chip(name, byColour[name].join(", ")));
    legend.append(chip("stall", "stall"));
    if (plan) legend.append(chip("predicted", "predicted (thin row)"));
    const controls = element("div", {class: "controls"});
    const canvas = element("canvas", {tabindex: 0, role: "img", "aria-label": "Timeline of step " + step.step + " by lane; the table below has the sums. Keys: plus and minus zoom, arrows move, 0 shows all."});
    const readout = element("div", {class: "readout", "aria-live": "polite"}, "Point at or tap a bar to read it.");
    figure.append(legend, controls, canvas, readout);
    if (isFar) figure.append(element("p", {class: "quiet"}, "The predicted step takes " + timeText(whole) + " and goes on beyond the measured one: Plan shows all of it."));
    let from = 0, to = shown, chosen = null;

    function zoom(factor, centre) {
      const at = centre === undefined ? (from + to) / 2 : centre, span = Math.min(whole, Math.max(whole / 20000, (to - from) * factor));
      const share = (at - from) / (to - from);
      move(at - share * span, span);
    }
    function move(begin, span) {
      from = Math.max(0, Math.min(whole - span, begin));
      to = from + span;
      draw();
    }
    const pan = (share) => move(from + share * (to - from), to - from);
    const buttons = [["+", "Zoom in", () => zoom(0.5)], ["\u2212", "Zoom out", () => zoom(2)],
      ["\u25c0", "Earlier", () => pan(-0.4)], ["\u25b6", "Later", () => pan(0.4)], ["All", "Show the whole step", () => move(0, shown)]];
    if (isFar) buttons.push(["Plan", "Show the whole predicted step", () => move(0, whole)]);
    for (const [text, label, act] of buttons) {
      const button = element("button", {type: "button", "aria-label": label, title: label}, text);
      button.addEventListener("click", act);
      controls.append(button);
    }
    controls.append(element("span", {}, matchMedia("(pointer: coarse)").matches ? "pinch to zoom, drag to move" : "drag to move, Ctrl + wheel to zoom, + \u2212 \u2190 \u2192 0"));

    const rowHeight = 18, thin = 9, gap = 10, head = 22;
    let left = 72, narrow = false, width = 0, height = 0, boxes = [];
    const px = (t) => left + (t - from) / (to - from) * (width - left - 8);
    const tx = (x) => from + (x - left) / (width - left - 8) * (to - from);

    function bar(context, x, y, w, h, fill) {
      context.fillStyle = fill;
      context.fillRect(x, y, Math.max(w, 0.6), h);
    }
    // The longest text that fits: no label is cut.
    function label(context, texts, x, y, w, h, fill) {
      if (w < 14) return;
      const text = texts.find((one) => one && context.measureText(one).width <= w - 6);
      if (!text) return;
      context.fillStyle = fill;
      context.fillText(text, x + 3, y + h / 2 + 0.5);
    }
    function nameOf(event) {
      const unit = event[5] >= 0 ? " " + (step.units[event[5]] || "?") : "";
      return plainName(data.kinds[event[4]]) + unit;
    }
    function labelsOf(event) {
      const unit = event[5] >= 0 ? step.units[event[5]] || "" : "";
      return [nameOf(event), unit, unit.replace(/^[a-z]+\./, "")]; // "forward block.3", "block.3", "3"
    }
    function drawLane(context, lane, y, colours) {
      context.fillStyle = colours.text;
      context.font = "600 12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
      context.fillText(lane.name, narrow ? 2 : 4, narrow ? y - 8 : y + rowHeight / 2);
      context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
      bar(context, left, y, width - left - 8, lane.count * rowHeight, colours.track);
      for (const event of lane.events) {
        const begin = event[2], end = begin + event[3];
        if (end < from || begin - event[8] > to) continue;
        const x = Math.max(left, px(begin)), w = Math.min(width - 8, px(end)) - x, top = y + event[1] * rowHeight;
        if (event[8] > 0 && px(begin) > left) {
          const stall = Math.max(left, px(begin - event[8]));
          bar(context, stall, top + rowHeight - 6, px(begin) - stall, 4, colours.stall);
        }
        if (w < 0) continue;
        bar(context, x, top + 1, w, rowHeight - 3, colours.kinds[event[4]]);
        if (event === chosen) {
          context.strokeStyle = colours.text;
          context.lineWidth = 2;
          context.strokeRect(x, top + 1, Math.max(w, 2), rowHeight - 3);
        }
        boxes.push([x, top, Math.max(w, 4), rowHeight, event]);
        label(context, labelsOf(event), x, top, w, rowHeight - 1, colours.ink);
      }
      const below = y + lane.count * rowHeight + 1;
      for (const span of lane.spans) {
        if (span[1] < from || span[0] > to) continue;
        const x = Math.max(left, px(span[0])), w = Math.min(width - 8, px(span[1])) - x;
        bar(context, x, below, Math.max(0.6, w - (w > 3 ? 0.5 : 0)), thin - 1, colours.predicted);
        boxes.push([x, below, Math.max(w, 4), thin, null, span]);
      }
      return below + thin + gap + (narrow ? 14 : 0);
    }
    function draw() {
      const scale = window.devicePixelRatio || 1, context = canvas.getContext("2d");
      width = Math.max(240, figure.clientWidth);
      narrow = width < 560;
      left = narrow ? 2 : 72;
      height = head + (narrow ? 14 : 0) + rows.reduce((sum, lane) => sum + lane.count * rowHeight + thin + 1 + gap + (narrow ? 14 : 0), 0);
      canvas.style.height = height + "px";
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, height);
      context.textBaseline = "middle";
      context.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
      const colours = {text: colour("text"), quiet: colour("quiet"), grid: colour("grid"), track: colour("track"), stall: colour("stall"),
        predicted: colour("predicted"), ink: "#0b1016", kinds: data.kinds.map((kind) => colour(kindColour[kind] || "k-other"))};
      boxes = [];
      let y = head + (narrow ? 14 : 0);
      for (const lane of rows) y = drawLane(context, lane, y, colours);
      context.fillStyle = colours.quiet;
      for (const t of ticks(from, to, width / 120)) {
        const text = timeText(t), w = context.measureText(text).width;
        context.fillRect(px(t), head - 5, 1, 5);
        context.fillText(text, Math.max(left, Math.min(width - w - 4, px(t) - w / 2)), 9);
      }
    }
    function read(x, y) {
      const hit = boxes.filter((b) => x >= b[0] - 2 && x <= b[0] + b[2] + 2 && y >= b[1] && y < b[1] + b[3]).sort((a, b) => a[2] - b[2])[0];
      chosen = hit && hit[4] ? hit[4] : null;
      if (!hit) return;
      if (!hit[4]) {
        const span = hit[5], unit = span[3] >= 0 ? " " + (data.plan.units[span[3]] || "?") : "";
        readout.textContent = "predicted: " + plainName(plan.kinds[span[2]]) + unit + (span[4] > 1 ? " and " + (span[4] - 1) + " more ops" : "") + ", " + timeText(span[1] - span[0]) + " from " + timeText(span[0]);
        return;
      }
      const event = hit[4], index = event[6] >= 0 ? " " + (indexWord[data.kinds[event[4]]] || "part") + " " + event[6] : "";
      readout.textContent = nameOf(event) + index + (event[10] > 1 ? " and " + (event[10] - 1) + " more ops" : "") + ": " + timeText(event[3]) + " from " + timeText(event[2])
        + (event[7] > 0 ? ", " + bytesText(event[7]) + (event[3] > 0 && event[10] === 1 ? " at " + scaled(event[7] / event[3] * 1e6, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]) : "") : "")
        + (event[8] > 0 ? "; before it a stall of " + timeText(event[8]) + (event[9] >= 0 ? " for " + data.stalls[event[9]] : "") : "");
    }

    // One finger or button drags, two fingers zoom. A vertical touch scrolls the page.
    const held = new Map();
    let pinch = 0;
    const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, place(event));
      canvas.setPointerCapture(event.pointerId);
      pinch = 0;
      read(...place(event));
      draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event), before = held.get(event.pointerId);
      if (!before) {
        read(...now);
        draw();
        return;
      }
      held.set(event.pointerId, now);
      if (held.size === 1) {
        pan((before[0] - now[0]) / (width - left - 8));
      } else if (held.size === 2) {
        const [a, b] = [...held.values()], distance = Math.max(10, Math.abs(a[0] - b[0]));
        if (pinch > 0) zoom(pinch / distance, tx((a[0] + b[0]) / 2));
        pinch = distance;
      }
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => { held.delete(event.pointerId); pinch = 0; });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.0025), tx(place(event)[0]));
    }, {passive: false});
    canvas.addEventListener("keydown", (event) => {
      const acts = {"+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
        0: () => move(0, shown), Home: () => move(0, to - from), End: () => move(whole, to - from)};
      if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[event.key]();
    });
    drawn.push(draw);
    draw();
    return true;
  }

