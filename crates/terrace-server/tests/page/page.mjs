// Uses the page in headless Chromium as somebody with a mouse and a keyboard would.
//
//   node page.mjs MODULES CHROMIUM PAGE IMAGES SERVER SCREENSHOT
//
// MODULES is a directory whose node_modules has playwright-core; IMAGES is how many there are; SERVER is the process
// that is ended at last. Ends with 1 if something is not as it should be.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const [modules, chromium, page_url, images_text, server, screenshot] = process.argv.slice(2);
const images = Number(images_text);
const playwright = createRequire(join(resolve(modules), "index.js"))("playwright-core");
// For each thing that is waited for, on a machine that is busy with other things.
const PATIENCE_MS = 180_000;

const profile = await mkdtemp(join(tmpdir(), "page-"));
const context = await playwright.chromium.launchPersistentContext(profile, {
    executablePath: chromium,
    headless: true,
    timeout: PATIENCE_MS,
    viewport: { width: 900, height: 500 },
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
try {
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    // An error of the script is a failure, wherever it comes from.
    const errors = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    await page.goto(page_url);
    const wait_for = async (what, condition, argument) => {
        await page.waitForFunction(condition, argument).catch((error) => {
            throw new Error(`not within ${PATIENCE_MS} ms: ${what}`, { cause: error });
        });
    };
    const text = (selector) => page.textContent(selector);

    // The grid: all images are counted, once the import is through; elements are there only for what can be seen.
    await wait_for("all images are counted", (images) =>
        document.getElementById("summary").textContent === `${images} images`, images);
    await wait_for("pictures are shown", () => document.querySelectorAll(".tile img.there").length > 3);
    const tiles = () => page.locator(".tile").count();
    const indices = () => page.$$eval(".tile", (all) => all.map((tile) => Number(tile.dataset.index)));
    assert.equal(await page.isHidden("#empty"), true);
    assert.deepEqual(await indices(), [...(await indices())].sort((one, other) => one - other), "tiles are in order");
    await page.screenshot({ path: screenshot });
    await page.setViewportSize({ width: 400, height: 150 });
    await wait_for("few elements for a small window", (images) => {
        const count = document.querySelectorAll(".tile").length;
        return count > 0 && count < images;
    }, images);
    await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
    await wait_for("the last one, after scrolling to it", (images) =>
        document.querySelector(`.tile[data-index="${images - 1}"]`), images);
    await page.evaluate(() => scrollTo(0, 0));
    await page.setViewportSize({ width: 900, height: 500 });
    await wait_for("the first one again", () => document.querySelector('.tile[data-index="0"]'));

    // Names of strangers are text.
    const markup = '<img src=x onerror="document.title=1">.png';
    assert.equal(await page.title(), "Terrace", "no markup of a name runs");
    // In which order they were imported is chance, so a window with room for all of them.
    await page.setViewportSize({ width: 900, height: 6000 });
    await wait_for("all of them in a high window", (images) =>
        document.querySelectorAll(".tile").length === images, images);
    const titles = await page.$$eval(".tile", (all) => all.map((tile) => tile.title));
    assert.ok(titles.some((title) => title.includes(markup)), `one is called ${markup}: ${titles}`);
    await page.setViewportSize({ width: 900, height: 500 });

    // The viewer: opened by a click, moved by keys, closed by Escape, found again by its address.
    const shown = (id) => wait_for("the picture in the viewer", (id) => {
        const picture = document.getElementById("picture");
        return decodeURIComponent(location.hash.slice(1)) === id && picture.classList.contains("there") && picture.naturalWidth > 0;
    }, id);
    const id_of = (index) => page.getAttribute(`.tile[data-index="${index}"]`, "data-id");
    const [first, second] = [await id_of(0), await id_of(1)];
    await page.click('.tile[data-index="0"]');
    await shown(first);
    assert.ok((await page.locator(".resolution").count()) >= 2, "resolutions to choose from");
    assert.ok((await text("#attributes")).includes("version"));
    await page.keyboard.press("ArrowRight");
    await shown(second);
    await page.keyboard.press("ArrowLeft");
    await shown(first);
    const checked = () => page.getAttribute('.resolution[aria-checked="true"]', "data-name");
    const before = await checked();
    await page.click('.resolution[aria-checked="false"]');
    assert.notEqual(await checked(), before, "another resolution is chosen");
    await shown(first);
    await page.keyboard.press("Escape");
    await wait_for("the viewer closes", () => !document.getElementById("viewer").open && location.hash === "");
    const focused = () => page.evaluate(() => document.activeElement.dataset.index);
    assert.equal(await focused(), "0", "where one was");
    await page.keyboard.press("ArrowRight");
    assert.equal(await focused(), "1");
    await page.goto(`${page_url}#${encodeURIComponent(second)}`);
    await shown(second);
    await page.goto(`${page_url}#nothing-has-this-id`);
    await wait_for("what is not there is told", () => document.getElementById("picture-state").textContent.length > 0
        && !document.getElementById("picture").hasAttribute("src"));
    await page.keyboard.press("Escape");

    // Another density.
    const narrow = await page.evaluate(() => document.querySelector(".rows").style.gridTemplateColumns);
    await page.click("#density label:nth-of-type(2)");
    await wait_for("the wall", () => document.getElementById("grid").className === "grid wall");
    assert.notEqual(await page.evaluate(() => document.querySelector(".rows").style.gridTemplateColumns), narrow);
    assert.ok((await tiles()) > 0);

    // The tiers, as the server counts them.
    await page.click("#tiers-button");
    assert.equal(await page.getAttribute("#tiers-button", "aria-expanded"), "true");
    await wait_for("three homes", () => document.querySelectorAll("#homes .home").length === 3);
    const { homes } = await (await fetch(`${page_url}api/stats`)).json();
    const counted = Object.values(homes).reduce((sum, home) => sum + home.objects, 0);
    assert.ok(counted > images, "each image is several objects");
    await wait_for("the same numbers as the server's", (homes) => {
        const format = new Intl.NumberFormat("en");
        const told = document.getElementById("homes").textContent;
        return Object.values(homes).every((home) => told.includes(`${format.format(home.objects)} objects`));
    }, homes);
    assert.ok((await text("#writing")).includes("Write amplification"));
    // How full they are, and what is kept for deletes.
    assert.match(await text("#writing"), /In use[^,]* of [^,]*, \d+ %/);
    assert.match(await text("#writing"), /Kept for deletes\d/);
    assert.equal(await page.isHidden("#notice"), true, "nothing is wrong");

    // Without the server the page says so, and goes on trying.
    process.kill(Number(server), "SIGTERM");
    await wait_for("that nobody answers", () => {
        const notice = document.getElementById("notice");
        return !notice.hidden && notice.classList.contains("bad") && notice.textContent.includes("does not answer");
    });
    assert.deepEqual(errors, []);
} finally {
    await context.close();
    await rm(profile, { recursive: true, force: true });
}
