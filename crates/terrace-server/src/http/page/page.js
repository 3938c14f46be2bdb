// The page: a grid that only holds the rows in view, a viewer, a panel of tiers.
//
// File names and attributes come from files of strangers: they enter the document as text (textContent, setAttribute) and
// never as markup. The grid keeps what it knows of each image in an array, and elements only for what can be seen, so
// a hundred thousand images cost a hundred elements.
"use strict";

const $ = (id) => document.getElementById(id);
const PAGE_LIMIT = 500;
const STATS_INTERVAL_MS = 2000;
const TIER_NAMES = { inline: "index", flash: "flash", block: "disk" };
// Cell sizes in pixels. The sheet shows thumbnails (100×100) at their own size, the wall crops small pictures.
const DENSITIES = {
  thumbnail: { cell: 124, height: 124, gap: 12, style: "sheet" },
  small: { cell: 260, height: 220, gap: 12, style: "wall" },
};

async function ask(path) {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error || `the server answered ${response.status}`);
  return body;
}

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const number = new Intl.NumberFormat("en");

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

// Attributes are text, or {base64} where they are not UTF-8.
const text = (value) => (value == null ? "" : typeof value === "object" ? `base64 ${value.base64}` : String(value));

function address(id, resolution, version) {
  return `/images/${encodeURIComponent(id)}/${encodeURIComponent(resolution)}?v=${version}`;
}

// ---- What is known of the images, in order of their IDs

const catalogue = {
  images: [],
  next: null,
  complete: false,
  loading: null,
  error: null,

  // Loads the next page, once at a time.
  more() {
    if (this.complete) return Promise.resolve();
    this.loading ??= this.fetchPage().finally(() => {
      this.loading = null;
      grid.draw();
      describe();
    });
    return this.loading;
  },

  async fetchPage() {
    try {
      const after = this.next === null ? "" : `&after=${encodeURIComponent(this.next)}`;
      const page = await ask(`/api/images?limit=${PAGE_LIMIT}${after}`);
      for (const image of page.images) this.images.push(image);
      this.next = page.next;
      this.complete = page.next === null;
      this.error = null;
    } catch (error) {
      this.error = error.message;
    }
  },

  async reload() {
    await this.loading;
    this.images = [];
    this.next = null;
    this.complete = false;
    await this.more();
  },
};

// ---- Grid

const grid = {
  box: $("grid"),
  rows: element("div", { class: "rows" }),
  tiles: new Map(),
  density: "thumbnail",
  columns: 0,

  start() {
    this.box.append(this.rows);
    this.apply();
    let waiting = false;
    const redraw = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.draw();
      });
    };
    addEventListener("scroll", redraw, { passive: true });
    new ResizeObserver(redraw).observe(this.box);
    this.rows.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (tile) viewer.open(Number(tile.dataset.index));
    });
    this.rows.addEventListener("keydown", (event) => this.key(event));
  },

  apply() {
    const shape = DENSITIES[this.density];
    this.box.className = `grid ${shape.style}`;
    this.box.style.setProperty("--tile-height", `${shape.height}px`);
    this.box.style.setProperty("--space", `${shape.gap}px`);
    this.tiles.clear();
    this.rows.replaceChildren();
    this.columns = 0;
    this.draw();
  },

  // Puts in place what can be seen, and a screenful around it.
  draw() {
    const shape = DENSITIES[this.density];
    const columns = Math.max(2, Math.floor((this.box.clientWidth + shape.gap) / (shape.cell + shape.gap)));
    const step = shape.height + shape.gap;
    if (columns !== this.columns) {
      this.columns = columns;
      this.rows.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    }
    const total = Math.ceil(catalogue.images.length / columns);
    this.box.style.height = `${Math.max(0, total * step - shape.gap)}px`;
    const above = -this.box.getBoundingClientRect().top;
    const first = Math.max(0, Math.min(total, Math.floor((above - innerHeight) / step)));
    const last = Math.max(first, Math.min(total, Math.ceil((above + 2 * innerHeight) / step)));
    this.fill(first * columns, Math.min(last * columns, catalogue.images.length));
    this.rows.style.transform = `translateY(${first * step}px)`;
    if (last >= total - 2 && !catalogue.error) catalogue.more();
  },

  fill(from, to) {
    for (const [index, tile] of this.tiles) {
      if (index < from || index >= to || tile.dataset.id !== catalogue.images[index].id) {
        tile.remove();
        this.tiles.delete(index);
      }
    }
    let before = this.rows.firstChild;
    for (let index = from; index < to; index += 1) {
      let tile = this.tiles.get(index);
      if (tile) {
        before = tile.nextSibling;
        continue;
      }
      tile = this.tile(index);
      this.tiles.set(index, tile);
      this.rows.insertBefore(tile, before);
    }
  },

  tile(index) {
    const image = catalogue.images[index];
    const name = text(image.name) || image.id;
    const tile = element("button", { class: "tile", type: "button", title: name });
    tile.dataset.index = index;
    tile.dataset.id = image.id;
    const wanted = image.resolutions.includes(this.density) ? this.density : image.resolutions.at(-1);
    if (wanted) {
      const picture = element("img", { alt: name, loading: "lazy", decoding: "async", draggable: "false" });
      picture.addEventListener("load", () => picture.classList.add("there"));
      picture.addEventListener("error", () => {
        picture.remove();
        tile.classList.add("broken");
      });
      picture.src = address(image.id, wanted, image.version);
      tile.append(picture);
    } else {
      tile.classList.add("broken");
    }
    return tile;
  },

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    const tile = event.target.closest(".tile");
    if (!tile || !(event.key in steps)) return;
    event.preventDefault();
    this.focus(Number(tile.dataset.index) + steps[event.key]);
  },

  focus(index) {
    if (index < 0 || index >= catalogue.images.length) return;
    const shape = DENSITIES[this.density];
    const top = this.box.getBoundingClientRect().top + Math.floor(index / this.columns) * (shape.height + shape.gap);
    if (top < 80 || top + shape.height > innerHeight) {
      scrollBy(0, top - innerHeight / 2 + shape.height / 2);
      this.draw();
    }
    this.tiles.get(index)?.focus({ preventScroll: true });
  },
};

// ---- Viewer

const viewer = {
  dialog: $("viewer"),
  picture: $("picture"),
  index: -1,
  image: null,
  chosen: "",
  request: 0,

  start() {
    $("close").addEventListener("click", () => this.dialog.close());
    $("back").addEventListener("click", () => this.step(-1));
    $("forth").addEventListener("click", () => this.step(1));
    this.dialog.addEventListener("close", () => this.closed());
    this.dialog.addEventListener("keydown", (event) => this.key(event));
    this.picture.addEventListener("load", () => {
      this.picture.classList.add("there");
      this.say("");
    });
    this.picture.addEventListener("error", () => {
      this.picture.classList.remove("there");
      if (this.picture.hasAttribute("src")) this.say("This browser cannot show this file; it can still be downloaded.");
    });
    addEventListener("hashchange", () => this.followAddress());
    this.followAddress();
  },

  open(index) {
    const image = catalogue.images[index];
    if (!image) return;
    this.index = index;
    this.show(image.id, text(image.name));
  },

  // Shows an image by its ID: from the grid, or from an address somebody kept.
  async show(id, name) {
    const request = ++this.request;
    if (!this.dialog.open) this.dialog.showModal();
    $("name").textContent = name || id;
    history.replaceState(null, "", `#${encodeURIComponent(id)}`);
    try {
      const image = await ask(`/api/images/${encodeURIComponent(id)}`);
      if (request === this.request) this.fill(image);
    } catch (error) {
      if (request !== this.request) return;
      this.image = null;
      this.picture.removeAttribute("src");
      $("resolutions").replaceChildren();
      $("attributes").replaceChildren();
      this.say(error.message);
    }
  },

  fill(image) {
    this.image = image;
    $("name").textContent = text(image.attributes["file-name"]) || image.id;
    $("resolutions").replaceChildren(...image.resolutions.map((resolution) => this.choice(resolution)));
    const shown = Object.entries(image.attributes).filter(([name]) => !/^(file-name|resolutions|etag|content-type)$|^resolution\./.test(name));
    const facts = [...shown, ["id", image.id], ["version", image.version]];
    $("attributes").replaceChildren(
      ...facts.flatMap(([name, value]) => [
        element("dt", { text: name.replaceAll("-", " ") }),
        element("dd", { text: name === "bytes" ? `${number.format(Number(value))} (${size(Number(value))})` : text(value) }),
      ]),
    );
    const names = image.resolutions.map((resolution) => resolution.name);
    const fallback = ["large", "small"].find((name) => names.includes(name)) ?? names.at(-1);
    const choice = names.includes(this.chosen) ? this.chosen : fallback;
    if (choice === undefined) {
      this.picture.removeAttribute("src");
      this.say("No resolution of this image is stored.");
    } else {
      this.choose(choice, false);
    }
  },

  choice(resolution) {
    const pixels = resolution.width && resolution.height ? `${number.format(resolution.width)} × ${number.format(resolution.height)} · ` : "";
    return element(
      "button",
      { class: "resolution", type: "button", role: "radio", "aria-checked": "false", "data-name": resolution.name, onclick: () => this.choose(resolution.name, true) },
      element("span", { text: resolution.name }),
      element("small", { text: `${pixels}${size(resolution.bytes)}` }),
      element("span", { class: "badge", "data-tier": resolution.home, text: TIER_NAMES[resolution.home] ?? resolution.home, title: `home: ${resolution.home}` }),
    );
  },

  choose(name, byHand) {
    const resolution = this.image.resolutions.find((one) => one.name === name);
    if (byHand) this.chosen = name;
    for (const button of $("resolutions").children) {
      button.setAttribute("aria-checked", String(button.dataset.name === name));
    }
    this.say("Loading…");
    this.picture.alt = `${$("name").textContent}, ${name}`;
    this.picture.src = address(this.image.id, name, resolution.version);
  },

  say(message) {
    $("picture-state").textContent = message;
  },

  async step(by) {
    if (this.index < 0) return;
    if (this.index + by >= catalogue.images.length) await catalogue.more();
    const index = this.index + by;
    if (index >= 0 && index < catalogue.images.length) this.open(index);
  },

  turn(by) {
    const buttons = [...$("resolutions").children];
    const now = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
    const next = buttons[now + by];
    if (next) this.choose(next.dataset.name, true);
  },

  key(event) {
    const actions = { ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1), ArrowUp: () => this.turn(-1), ArrowDown: () => this.turn(1) };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  },

  closed() {
    this.request += 1;
    this.picture.removeAttribute("src");
    history.replaceState(null, "", location.pathname);
    grid.draw();
    grid.focus(this.index);
  },

  followAddress() {
    let id;
    try {
      id = decodeURIComponent(location.hash.slice(1));
    } catch {
      return;
    }
    if (!id) return;
    this.index = catalogue.images.findIndex((image) => image.id === id);
    this.show(id, "");
  },
};

// ---- Tiers

const tiers = {
  panel: $("tiers"),
  importing: false,

  start() {
    $("tiers-button").addEventListener("click", () => {
      this.panel.hidden = !this.panel.hidden;
      $("tiers-button").setAttribute("aria-expanded", String(!this.panel.hidden));
      grid.draw();
    });
    const tick = async () => {
      if (!document.hidden) await this.refresh();
      setTimeout(tick, STATS_INTERVAL_MS);
    };
    tick();
  },

  async refresh() {
    try {
      const stats = await ask("/api/stats");
      this.draw(stats);
      await this.follow(stats.import);
      if (stats.damage.length) notice(`Damage was found when the store was opened: ${stats.damage[0]}${stats.damage.length > 1 ? `, and ${number.format(stats.damage.length - 1)} more` : ""}`, true);
      if (stats.full) notice(`Nothing new is taken: ${stats.full}`, true);
      if (stats.failed) notice(`The store refuses writes: ${stats.failed}`, true);
    } catch (error) {
      notice(`The server does not answer (${error.message}). Trying again…`, true);
    }
  },

  draw(stats) {
    const homes = [
      ["flash", "Flash", "small values, in the log"],
      ["inline", "Index", "tiny values, beside their keys"],
      ["block", "Disk", "large values, in blocks"],
    ];
    $("homes").replaceChildren(
      ...homes.map(([home, title, what]) =>
        element(
          "div",
          { class: "home", "data-tier": home },
          element("h2", { text: title }),
          element("strong", { text: size(stats.homes[home].bytes) }),
          element("p", { class: "quiet", text: `${number.format(stats.homes[home].objects)} objects: ${what}` }),
        ),
      ),
    );
    this.reads(stats.reads);
    const written = stats.written;
    const facts = [
      ["Write amplification", written.user_bytes ? `${written.write_amplification.toFixed(2)}×` : "nothing written yet"],
      ["Given to the store", size(written.user_bytes)],
      ["Written to flash", size(written.flash_user_bytes + written.flash_padding_bytes + written.flash_reinserted_bytes + written.index_bytes + written.compaction_bytes + written.copy_bytes)],
      ["Written to disk", size(written.large_user_bytes + written.large_destaged_bytes)],
      ["Flash log", `${size(stats.log.allocated_bytes)} of ${size(stats.log.capacity_bytes)}`],
      ["Waiting in RAM", size(stats.queue.overlay_bytes)],
      [stats.fill.shared ? "In use" : "In use on flash", this.fill(stats.fill.flash)],
      ...(stats.fill.shared ? [] : [["In use on disk", this.fill(stats.fill.large)]]),
      ["Kept for deletes", size(stats.reserve_bytes)],
    ];
    $("writing").replaceChildren(...facts.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]));
  },

  fill(fill) {
    const left = fill.hours_to_full === null ? "" : `; full in ${number.format(Math.round(fill.hours_to_full))} h at this rate`;
    return `${size(fill.used_bytes)} of ${size(fill.capacity_bytes)}, ${fill.percent} %${left}`;
  },

  reads(reads) {
    const kinds = [
      ["ram", "RAM", reads.overlay_hits + reads.cache_hits + reads.prefetch_hits],
      ["inline", "index", reads.inline_hits],
      ["flash", "flash", reads.flash_hits + reads.copy_hits],
      ["block", "disk", reads.block_hits],
      ["none", "not there", reads.misses],
    ];
    const bar = $("reads-bar");
    if (!bar.children.length) bar.append(...kinds.map(([tier]) => element("i", { "data-tier": tier })));
    kinds.forEach(([, , count], place) => {
      bar.children[place].style.flexGrow = count;
      bar.children[place].hidden = count === 0;
    });
    $("reads").replaceChildren(...kinds.map(([tier, name, count]) => element("li", { "data-tier": tier, text: `${name} ${number.format(count)}` })));
  },

  // Shows how an import goes; fills the first screens as it goes, and the rest when it ends.
  async follow(running) {
    if (!running) return notice("");
    const failed = running.failed ? `, ${number.format(running.failed)} failed` : "";
    if (running.running) {
      const of = running.counted ? ` of ${number.format(running.files_found)}` : "";
      notice(`Importing: ${number.format(running.files_done)}${of} files${failed}`);
      if (catalogue.complete && catalogue.images.length < PAGE_LIMIT && scrollY < innerHeight && !viewer.dialog.open) await catalogue.reload();
    } else {
      notice(running.error ? `The import ended early: ${running.error}` : "", Boolean(running.error));
      if (this.importing && !viewer.dialog.open) await catalogue.reload();
    }
    this.importing = running.running || (this.importing && viewer.dialog.open);
  },
};

function notice(message, bad = false) {
  const box = $("notice");
  if (box.textContent !== message) box.textContent = message;
  box.classList.toggle("bad", bad);
  box.hidden = !message;
}

function describe() {
  const count = catalogue.images.length;
  const empty = catalogue.complete && count === 0;
  $("empty").hidden = !empty;
  $("summary").textContent = empty ? "" : `${number.format(count)}${catalogue.complete ? "" : "+"} ${count === 1 ? "image" : "images"}`;
  const more = $("more");
  more.replaceChildren();
  if (catalogue.error) {
    more.append(`${catalogue.error} `, element("button", { type: "button", text: "Try again", onclick: () => catalogue.more() }));
  } else if (!catalogue.complete) {
    more.textContent = "Loading…";
  }
}

for (const choice of document.querySelectorAll("#density input")) {
  choice.addEventListener("change", () => {
    grid.density = choice.value;
    grid.apply();
  });
}

grid.start();
viewer.start();
tiers.start();
