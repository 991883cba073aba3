// Hover, keyboard and zoom of a chart.

function listen(state) {
  const { svg } = state;
  let start = null;
  const place = (event) => {
    const box = svg.getBoundingClientRect();
    const ratio = state.width / box.width;
    return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") return show(state, nearest(state, place(event), 40), event);
    start = place(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (start) frame(state, start, place(event));
    else show(state, nearest(state, place(event), 28), event);
  });
  svg.addEventListener("pointerup", (event) => {
    if (start) zoomTo(state, start, place(event));
    start = null;
  });
  svg.addEventListener("pointercancel", () => { start = null; state.top.replaceChildren(); });
  svg.addEventListener("pointerleave", () => show(state, -1));
  svg.addEventListener("dblclick", () => setZoom(state, null));
  svg.addEventListener("blur", () => show(state, -1));
  svg.addEventListener("keydown", (event) => keys(state, event));
}

function nearest({ dots, room }, [x, y], within) {
  let best = -1;
  let far = within * within;
  dots.forEach((dot, k) => {
    if (dot.x < room.left - 7 || dot.x > room.right + 7 || dot.y < room.top - 7 || dot.y > room.bottom + 7) return;
    const d = (dot.x - x) ** 2 + (dot.y - y) ** 2;
    if (d < far) [best, far] = [k, d];
  });
  return best;
}

function show(state, k, event) {
  state.at = k;
  state.top.replaceChildren();
  TIP.hidden = k < 0;
  if (k < 0) return;
  const dot = state.dots[k];
  node("circle", { cx: dot.x, cy: dot.y, r: 9, class: "ring" }, state.top);
  TIP.replaceChildren(...dot.p.tip.filter(Boolean).map((line) => html("div", line)));
  const box = state.svg.getBoundingClientRect();
  const [x, y] = event ? [event.clientX, event.clientY] : [box.left + (dot.x * box.width) / state.width, box.top + (dot.y * box.width) / state.width];
  const size = TIP.getBoundingClientRect();
  TIP.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - size.width - 4))}px`;
  TIP.style.top = `${y + 18 + size.height > window.innerHeight ? Math.max(4, y - size.height - 12) : y + 18}px`;
}

function keys(state, event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const count = state.dots.length;
  if (step && count) show(state, (state.at + step + count + (state.at < 0 && step < 0 ? 1 : 0)) % count);
  else if (event.key === "+" || event.key === "=") zoomBy(state, 0.6);
  else if (event.key === "-") zoomBy(state, 1 / 0.6);
  else if (event.key === "0") setZoom(state, null);
  else if (event.key === "Escape") show(state, -1);
  else return;
  event.preventDefault();
}

function frame(state, [ax, ay], [bx, by]) {
  state.top.replaceChildren();
  TIP.hidden = true;
  node("rect", { x: Math.min(ax, bx), y: Math.min(ay, by), width: Math.abs(ax - bx), height: Math.abs(ay - by), class: "box" }, state.top);
}

function zoomTo(state, [ax, ay], [bx, by]) {
  state.top.replaceChildren();
  if (Math.abs(ax - bx) < 10 || Math.abs(ay - by) < 10) return;
  const { sx, sy } = state;
  setZoom(state, {
    x: [sx.invert(Math.min(ax, bx)), sx.invert(Math.max(ax, bx))],
    y: [sy.invert(Math.max(ay, by)), sy.invert(Math.min(ay, by))],
  });
}

function zoomBy(state, factor) {
  const { room, sx, sy, dots, at } = state;
  const [cx, cy] = at >= 0 ? [dots[at].x, dots[at].y] : [(room.left + room.right) / 2, (room.top + room.bottom) / 2];
  const near = (edge, centre) => centre + (edge - centre) * factor;
  setZoom(state, {
    x: [sx.invert(near(room.left, cx)), sx.invert(near(room.right, cx))],
    y: [sy.invert(near(room.bottom, cy)), sy.invert(near(room.top, cy))],
  });
}

function setZoom(state, zoom) {
  state.zoom = zoom;
  if (zoom) zooms.set(state.spec.key, zoom);
  else zooms.delete(state.spec.key);
  const at = state.at;
  paint(state);
  if (document.activeElement === state.svg) show(state, at);
  else show(state, -1);
}
