// The charts of each section, from the groups that the filters show.
const DATA = JSON.parse(document.getElementById("data").textContent);
const MOST = 16; // panels of one section
const FOLD = 60; // rows of the controls

const place = (g) => DATA.places[g.p];
const unit = (one) => `${one.metric}${one.share ? ", %" : ""}`;
const round = (v) => String(+v.toPrecision(4));

const limits = (one) => (one.share ? [0, 100] : null);

function around(groups) {
  const all = groups.map((g) => 100 * g.x).filter((v) => v > 0);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  return high / low < 2 ? [low / 1.5, high * 1.5] : all;
}

function worded(spread, share) {
  if (!spread) return "not measured";
  const [mean, half, n] = spread;
  const digits = (v) => (share ? v.toFixed(2) : round(v));
  return `${digits(mean)}${half === null ? "" : ` ± ${digits(half)}`}${share ? " %" : ""} (n = ${n}${half === null ? ", too few for an interval" : ", 95 % interval"})`;
}

function about(g) {
  const kept = 100 * g.x;
  return [
    `${DATA.series[g.s]} at ${round(100 * DATA.densities[g.d])} %`,
    `${place(g).model} · ${place(g).dataset}`,
    Math.abs(g.x - DATA.densities[g.d]) > 1e-4 * g.x ? `actual density ${round(kept)} %` : "",
  ];
}

function spreadPoint(g, spread, x, extra = []) {
  const [mean, half] = spread;
  const bar = half === null ? {} : { lo: mean - half, hi: mean + half };
  return { x, y: mean, ...bar, tip: [...about(g), ...extra, g.c, g.q] };
}

function bySeries(groups) {
  const found = new Map();
  for (const g of groups) found.set(g.s, [...(found.get(g.s) || []), g]);
  return [...found].sort((a, b) => a[0] - b[0]);
}

function byPlace(groups) {
  return DATA.places.map((_, p) => groups.filter((g) => g.p === p)).filter((own) => own.length);
}

function byCell(groups, has) {
  const found = [];
  for (const own of byPlace(groups.filter(has)))
    DATA.densities.forEach((density, d) => {
      const here = own.filter((g) => g.d === d);
      if (here.length) found.push([`${place(here[0]).title}, ${round(100 * density)} %`, here, d]);
    });
  return found;
}

const SECTIONS = {
  accuracy(groups) {
    return byPlace(groups).flatMap((own) => {
      const one = place(own[0]);
      const range = own.flatMap((g) => [g.b, g.a]).filter(Boolean).flatMap(([m, h]) => [m - (h || 0), m + (h || 0)]);
      return [["b", "before"], ["a", "after"]].map(([key, when]) => ({
        key: `accuracy ${own[0].p} ${key}`,
        title: `${one.title}, ${when} fine-tuning`,
        x: { label: "weights kept, %", log: true, ticks: [...new Set(own.map((g) => 100 * DATA.densities[g.d]))].sort((a, b) => a - b), include: around(own) },
        y: { label: `test ${unit(one)}`, include: range, clamp: limits(one) },
        series: bySeries(own).map(([s, some]) => ({
          s,
          line: true,
          points: some.filter((g) => g[key]).sort((a, b) => a.x - b.x).map((g) => spreadPoint(g, g[key], 100 * g.x, [`${when} fine-tuning: ${worded(g[key], one.share)}`])),
        })),
      }));
    });
  },

  scatter(groups) {
    return byPlace(groups.filter((g) => g.seeds.length)).map((own) => {
      const one = place(own[0]);
      const least = Math.min(...own.map((g) => DATA.densities[g.d]));
      return {
        key: `scatter ${own[0].p}`,
        title: one.title,
        square: true,
        height: 340,
        x: { label: `before fine-tuning, test ${unit(one)}`, clamp: limits(one) },
        y: { label: `after, ${unit(one)}`, clamp: limits(one) },
        series: bySeries(own).map(([s, some]) => ({
          s,
          points: some.flatMap((g) => g.seeds.map(([seed, before, after]) => ({
            x: before,
            y: after,
            open: DATA.densities.length > 1 && DATA.densities[g.d] === least,
            tip: [...about(g), `seed ${seed}: ${round(before)} → ${round(after)}`, g.c],
          }))),
        })),
      };
    });
  },

  controls(groups) {
    const shown = new Set(groups);
    return DATA.places.map((one, p) => {
      const rows = DATA.controls.filter((c) => DATA.groups[c.g].p === p && shown.has(DATA.groups[c.g]));
      const few = rows.slice(0, FOLD);
      return few.length && {
        key: `controls ${p}`,
        title: `${one.title}: control worse by${rows.length > few.length ? ` (first ${FOLD} of ${rows.length} rows; use the filters)` : ""}`,
        x: { label: one.share ? `drop in ${one.metric}, percentage points` : `worse in ${one.metric} by`, include: [0, few[0].margin], rules: [few[0].margin] },
        y: { label: "control", names: few.map((c) => `${DATA.series[DATA.groups[c.g].s]} ${round(100 * DATA.densities[DATA.groups[c.g].d])} %: ${c.check}`) },
        series: bySeries(few.map((c) => DATA.groups[c.g])).map(([s]) => ({
          s,
          points: few.flatMap((c, k) => DATA.groups[c.g].s !== s ? [] : [{
            x: c.drop,
            y: k,
            xlo: c.low,
            xhi: c.high,
            tip: [...about(DATA.groups[c.g]), `control ${c.check}: worse by ${worded([c.drop, null, c.n], false).replace(/ \(.*/, "")}${c.low === null ? "" : `, 95 % interval ${round(c.low)} to ${round(c.high)}`} (n = ${c.n})`, c.verdict],
          }]),
        })),
      };
    }).filter(Boolean);
  },

  layers(groups) {
    return byCell(groups, (g) => g.l).map(([title, own, d]) => {
      const longest = own.reduce((a, b) => (DATA.layers[a.l[0]].length >= DATA.layers[b.l[0]].length ? a : b));
      return {
        key: `layers ${own[0].p} ${d}`,
        title,
        x: { label: "layer, from input to output", names: DATA.layers[longest.l[0]] },
        y: { label: "kept, %", log: true, rules: [100 * DATA.densities[d]] },
        series: own.map((g) => ({
          s: g.s,
          line: true,
          every: Math.ceil(g.l[1].length / 40),
          points: g.l[1].map((share, k) => ({ x: k, y: 100 * share, tip: [`${DATA.layers[g.l[0]][k]}: ${round(100 * share)} %`, ...about(g)] })),
        })),
      };
    });
  },

  convergence(groups) {
    return byCell(groups, (g) => g.cv[0].length + g.cv[1].length).map(([title, own, d]) => {
      const one = place(own[0]);
      const ends = own.map((g) => Math.max(0, ...g.cv[0].map((e) => e[0])));
      const longest = Math.max(...ends);
      return {
        key: `convergence ${own[0].p} ${d}`,
        title,
        x: { label: "epochs: search | fine-tuning", rules: longest && own.some((g) => g.cv[1].length) ? [longest] : [] },
        y: { label: `validation ${unit(one)}`, clamp: limits(one) },
        series: own.flatMap((g, k) => [0, 1].filter((phase) => g.cv[phase].length).map((phase) => ({
          s: g.s,
          line: true,
          band: true,
          every: Math.ceil(g.cv[phase].length / 8),
          points: g.cv[phase].map(([epoch, ...spread]) => spreadPoint(g, spread, (phase ? longest : longest - ends[k]) + epoch, [`${phase ? "fine-tuning" : "search"}, epoch ${epoch}: ${worded(spread, one.share)}`])),
        }))),
      };
    });
  },

  strength(groups) {
    const panels = byCell(groups, (g) => g.den.length).map(([title, own, d]) => {
      const lambda = own.filter((g) => g.lam.length);
      const values = lambda.flatMap((g) => g.lam.map((e) => e[1]));
      const epochs = own.flatMap((g) => g.den.map((e) => e[0]));
      const plain = (g, e, what) => ({ x: e[0], y: e[1], tip: [`epoch ${e[0]}: ${what} ${round(e[1])}${what === "λ" ? "" : " %"} (n = ${e[2]})`, ...about(g), g.c] });
      const density = {
        key: `strength ${own[0].p} ${d} density`,
        title: `${title}: density`,
        x: { label: "epochs of the search", include: [0, ...epochs] },
        y: { label: "weights in the mask, %", log: true, rules: [100 * DATA.densities[d]] },
        series: own.flatMap((g) => [
          ...(g.bound.length ? [{ s: g.s, line: "step", bare: true, quiet: true, points: [...g.bound, [Math.max(...g.den.map((e) => e[0]), g.bound.at(-1)[0]), g.bound.at(-1)[1]]].map(([x, y]) => ({ x, y: 100 * y, tip: [`bound from epoch ${x}: ${round(100 * y)} %`, ...about(g)] })) }] : []),
          { s: g.s, line: true, every: Math.ceil(g.den.length / 10), points: g.den.map(([e, v, n]) => plain(g, [e, 100 * v, n], "density")) },
        ]),
      };
      return [density, values.length && {
        key: `strength ${own[0].p} ${d} lambda`,
        title: `${title}: λ`,
        x: { label: "epochs of the search", include: [0, ...epochs] },
        y: { label: "λ", log: Math.min(...values) > 0, rules: Math.min(...values) < 0 ? [0] : [] },
        series: lambda.map((g) => ({ s: g.s, line: true, every: Math.ceil(g.lam.length / 10), points: g.lam.map((e) => plain(g, e, "λ")) })),
      }];
    });
    return [...panels.map((pair) => pair[0]), ...panels.map((pair) => pair[1]).filter(Boolean)];
  },

  cost(groups) {
    const kind = (document.querySelector("input[name=cost]:checked") || {}).value;
    return byPlace(groups.filter((g) => g.a && g.cost[kind])).map((own) => {
      const one = place(own[0]);
      return {
        key: `cost ${own[0].p} ${kind}`,
        title: one.title,
        x: { label: DATA.costs[kind], log: own.every((g) => g.cost[kind][0] > 0) },
        y: { label: `test ${unit(one)} after`, clamp: limits(one) },
        series: bySeries(own).map(([s, some]) => ({
          s,
          points: some.map((g) => {
            const [mean, half, n] = g.cost[kind];
            const side = half ? { xlo: Math.max(mean - half, mean / 10), xhi: mean + half } : {};
            return { ...spreadPoint(g, g.a, mean, [worded(g.a, one.share), `${DATA.costs[kind]}: ${round(mean)}${half ? ` ± ${round(half)}` : ""} (n = ${n})`]), ...side };
          }),
        })),
      };
    });
  },
};
