"use strict";
// Charts as SVG: scales, axes, marks, hover, keyboard and zoom. Text enters by textContent alone.
const NS = document.querySelector("svg.mark").namespaceURI;
const TIP = document.getElementById("tip");
const SHAPES = [
  [[0, 0]], // a circle
  [[-1, -1], [1, -1], [1, 1], [-1, 1]],
  [[0, -1.2], [1.15, 0.9], [-1.15, 0.9]],
  [[0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]],
  [[0, 1.2], [1.15, -0.9], [-1.15, -0.9]],
  [0, 1, 2, 3, 4].map((k) => [1.25 * Math.sin(k * 1.2566), -1.25 * Math.cos(k * 1.2566)]),
  null, // a cross of two strokes
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map((k) => [(k % 2 ? 0.6 : 1.5) * Math.sin(k * 0.6283), -(k % 2 ? 0.6 : 1.5) * Math.cos(k * 0.6283)]),
];
const COLOURS = 7; // and eight shapes: 56 combinations before one comes twice
const zooms = new Map();
let clips = 0;

function node(name, attributes, parent) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

function html(name, text, parent) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const colour = (s) => `var(--c${s % COLOURS})`;

function mark(parent, s, x, y, size, open) {
  const shape = SHAPES[s % SHAPES.length];
  let made;
  if (!shape) {
    const d = `M${x - size},${y - size}L${x + size},${y + size}M${x - size},${y + size}L${x + size},${y - size}`;
    made = node("path", { d, class: "stroke" }, parent);
    made.style.stroke = colour(s);
    return made;
  }
  if (shape.length === 1) made = node("circle", { cx: x, cy: y, r: size * 1.05 }, parent);
  else made = node("polygon", { points: shape.map(([a, b]) => `${x + size * a},${y + size * b}`).join(" ") }, parent);
  made.setAttribute("class", open ? "point open" : "point");
  if (open) made.style.stroke = colour(s);
  else made.style.fill = colour(s);
  return made;
}

// --- scales ---

function scale(low, high, from, to, log) {
  const turn = log ? Math.log10 : (v) => v;
  const back = log ? (v) => 10 ** v : (v) => v;
  const [a, b] = [turn(low), turn(high)];
  const map = (v) => from + ((turn(v) - a) / (b - a || 1)) * (to - from);
  map.invert = (pixel) => back(a + ((pixel - from) / (to - from || 1)) * (b - a));
  return map;
}

function ticks(low, high, log, most) {
  if (log) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.ceil(Math.log10(high)); e++)
      for (const m of [1, 2, 5]) found.push(m * 10 ** e);
    let inside = found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    if (inside.length > most) inside = inside.filter((v) => /^1(0*)$|^1e|^0\.0*1$/.test(String(+v.toPrecision(1))));
    while (inside.length > most) inside = inside.filter((_, k) => k % 2 === 0);
    if (inside.length > 1) return inside;
  }
  const raw = (high - low) / Math.max(1, most - 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) found.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return found;
}

const short = (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ? v.toExponential(2).replace(/\.?0+e/, "e") : String(+v.toPrecision(4)));

function extent(values, log, clamp) {
  const known = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  if (!known.length) return log ? [0.1, 1] : [0, 1];
  let [low, high] = [Math.min(...known), Math.max(...known)];
  const pad = log ? low === high ? 0.4 : Math.log10(high / low) * 0.06 : (high - low) * 0.06 || Math.abs(low) * 0.05 || 1;
  [low, high] = log ? [low / 10 ** pad, high * 10 ** pad] : [low - pad, high + pad];
  // a mean may come close to its limits, an interval beyond them says nothing
  return clamp ? [Math.max(low, clamp[0] - 1.5), Math.min(high, clamp[1] + 1.5)] : [low, high];
}

// --- one chart ---

function chart(host, spec) {
  const figure = html("figure", "", host);
  html("figcaption", spec.title, figure);
  const tools = html("div", "", figure);
  tools.className = "tools";
  const state = { spec, figure, zoom: zooms.get(spec.key) || null, at: -1 };
  for (const [name, label, act] of [["+", "Zoom in", () => zoomBy(state, 0.6)], ["−", "Zoom out", () => zoomBy(state, 1 / 0.6)], ["⟲", "Reset zoom", () => setZoom(state, null)]]) {
    const button = html("button", name, tools);
    button.type = "button";
    button.title = label;
    button.setAttribute("aria-label", `${label}: ${spec.title}`);
    button.addEventListener("click", act);
  }
  state.svg = node("svg", { class: "plot", tabindex: "0", role: "group", "aria-label": `${spec.title}. ${spec.y.label} against ${spec.x.label}. Arrow keys move between points.` }, figure);
  listen(state);
  return state;
}

function domain(state) {
  const { spec } = state;
  const all = spec.series.flatMap((one) => one.points);
  const xs = all.flatMap((p) => [p.x, p.xlo, p.xhi].filter((v) => v !== undefined && v !== null));
  const ys = all.flatMap((p) => [p.y, p.lo, p.hi].filter((v) => v !== undefined && v !== null));
  const x = spec.x.names ? [-0.5, spec.x.names.length - 0.5] : extent(xs.concat(spec.x.include || []), spec.x.log, spec.x.clamp);
  const y = spec.y.names ? [spec.y.names.length - 0.5, -0.5] : extent(ys.concat(spec.y.include || []), spec.y.log, spec.y.clamp);
  if (spec.square) x[0] = y[0] = Math.min(x[0], y[0]), x[1] = y[1] = Math.max(x[1], y[1]);
  return { x, y };
}

function paint(state) {
  const { spec, svg } = state;
  const width = Math.max(260, svg.parentNode.clientWidth || 600);
  const rows = spec.y.names ? spec.y.names.length : 0;
  const height = spec.y.names ? rows * 20 + 56 : spec.height || (width < 420 ? 240 : 280);
  const left = spec.y.names ? Math.min(width * 0.5, 12 + 7.2 * Math.max(...spec.y.names.map((n) => n.length))) : 54;
  const room = { left, right: width - 12, top: 10, bottom: height - 42 };
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  const { x, y } = state.zoom || domain(state);
  const sx = scale(x[0], x[1], room.left, room.right, spec.x.log);
  const sy = scale(y[0], y[1], room.bottom, room.top, spec.y.log);
  Object.assign(state, { room, sx, sy, width, height, dots: [] });
  axes(state, x, y);
  const id = `clip${clips++}`;
  const clip = node("clipPath", { id }, svg);
  node("rect", { x: room.left - 6, y: room.top - 6, width: room.right - room.left + 12, height: room.bottom - room.top + 12 }, clip);
  const inner = node("g", { "clip-path": `url(#${id})` }, svg);
  rules(state, inner);
  const order = [...new Set(spec.series.map((one) => one.s))];
  for (const one of spec.series) draw(state, inner, one, spec.y.names ? 0 : offset(order.indexOf(one.s), order.length));
  state.top = node("g", {}, svg);
}

const offset = (k, count) => (k - (count - 1) / 2) * Math.min(5, 30 / count);

function axes({ spec, svg, room, sx, sy, width, height }, x, y) {
  const most = Math.max(2, Math.floor((room.right - room.left) / 50));
  if (spec.x.names) {
    const step = Math.ceil((spec.x.names.length * 22) / (room.right - room.left));
    spec.x.names.forEach((name, k) => {
      if (k % step === 0 && k >= x[0] && k <= x[1]) node("text", { x: sx(k), y: room.bottom + 16, "text-anchor": "middle" }, svg).textContent = String(k + 1);
    });
  } else {
    const own = (spec.x.ticks || []).filter((v) => v >= x[0] && v <= x[1]);
    let last = -99;
    for (const v of own.length > 1 && own.length <= most ? own : ticks(x[0], x[1], spec.x.log, most)) {
      node("line", { x1: sx(v), x2: sx(v), y1: room.top, y2: room.bottom, class: "grid" }, svg);
      if (Math.abs(sx(v) - last) < 30) continue;
      last = sx(v);
      node("text", { x: sx(v), y: room.bottom + 16, "text-anchor": "middle" }, svg).textContent = short(v);
    }
  }
  if (spec.y.names) {
    spec.y.names.forEach((name, k) => {
      const most = Math.floor((room.left - 10) / 7);
      const text = node("text", { x: room.left - 8, y: sy(k) + 4, "text-anchor": "end" }, svg);
      text.textContent = name.length > most ? `${name.slice(0, most - 1)}…` : name;
      node("line", { x1: room.left, x2: room.right, y1: sy(k), y2: sy(k), class: "grid" }, svg);
    });
  } else {
    for (const v of ticks(y[0], y[1], spec.y.log, 6)) {
      node("line", { x1: room.left, x2: room.right, y1: sy(v), y2: sy(v), class: "grid" }, svg);
      node("text", { x: room.left - 6, y: sy(v) + 4, "text-anchor": "end" }, svg).textContent = short(v);
    }
    const text = node("text", { x: 12, y: (room.top + room.bottom) / 2, transform: `rotate(-90 12 ${(room.top + room.bottom) / 2})`, "text-anchor": "middle", class: "name" }, svg);
    text.textContent = spec.y.label;
  }
  node("line", { x1: room.left, x2: room.right, y1: room.bottom, y2: room.bottom, class: "axis" }, svg);
  node("line", { x1: room.left, x2: room.left, y1: room.top, y2: room.bottom, class: "axis" }, svg);
  node("text", { x: (room.left + room.right) / 2, y: height - 8, "text-anchor": "middle", class: "name" }, svg).textContent = spec.x.label;
}

function rules({ spec, room, sx, sy }, parent) {
  for (const v of spec.x.rules || []) node("line", { x1: sx(v), x2: sx(v), y1: room.top, y2: room.bottom, class: "rule" }, parent);
  for (const v of spec.y.rules || []) node("line", { x1: room.left, x2: room.right, y1: sy(v), y2: sy(v), class: "rule" }, parent);
  if (spec.square) node("line", { x1: sx(sx.invert(room.left)), x2: room.right, y1: sy(sx.invert(room.left)), y2: sy(sx.invert(room.right)), class: "rule" }, parent);
}

function draw(state, parent, one, shift) {
  const { sx, sy, room, spec } = state;
  const floor = (v) => (spec.y.log && !(v > 0) ? room.bottom : sy(v));
  const edge = (v) => (spec.x.log && !(v > 0) ? room.left : sx(v));
  const dots = one.points.map((p) => ({ x: edge(p.x) + shift, y: floor(p.y), p, s: one.s }));
  if (one.band) {
    const wide = dots.filter((d) => d.p.lo !== undefined && d.p.lo !== null);
    if (wide.length > 1) {
      const outline = [...wide.map((d) => [d.x, floor(d.p.hi)]), ...wide.reverse().map((d) => [d.x, floor(d.p.lo)])];
      node("polygon", { points: outline.map((e) => e.join(",")).join(" "), class: "band" }, parent).style.fill = colour(one.s);
    }
  }
  if (one.line && dots.length > 1) {
    const d = dots.map((dot, k) => (k === 0 ? `M${dot.x},${dot.y}` : one.line === "step" ? `H${dot.x}V${dot.y}` : `L${dot.x},${dot.y}`)).join("");
    const path = node("path", { d, class: one.line === "step" ? "series dotted" : "series" }, parent);
    path.style.stroke = colour(one.s);
  }
  if (!one.quiet) for (const dot of dots) bars(state, parent, dot, one, floor);
  const every = one.every || 1;
  if (!one.bare) dots.forEach((dot, k) => k % every === 0 && mark(parent, one.s, dot.x, dot.y, 4.2, dot.p.open || (spec.y.log && !(dot.p.y > 0))));
  if (!one.mute) state.dots.push(...dots);
}

function bars({ sx }, parent, dot, one, floor) {
  const { p } = dot;
  let d = "";
  if (!one.band && p.lo !== undefined && p.lo !== null) d += `M${dot.x},${floor(p.lo)}V${floor(p.hi)}M${dot.x - 4},${floor(p.lo)}h8M${dot.x - 4},${floor(p.hi)}h8`;
  if (p.xlo !== undefined && p.xlo !== null) d += `M${sx(p.xlo)},${dot.y}H${sx(p.xhi)}M${sx(p.xlo)},${dot.y - 4}v8M${sx(p.xhi)},${dot.y - 4}v8`;
  if (d) node("path", { d, class: "bar" }, parent).style.stroke = colour(one.s);
}
