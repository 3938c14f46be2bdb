// Plays a video in headless Chromium, seeks, and looks whether the picture is the one it should be.
//
//   node play.mjs MODULES CHROMIUM PAGE SOURCE SCREENSHOT
//
// MODULES is a directory whose node_modules has playwright-core. Ends with 1 if the video does not play.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const [modules, chromium, page_url, source, screenshot] = process.argv.slice(2);
const playwright = createRequire(join(resolve(modules), "index.js"))("playwright-core");
const PATIENCE_MS = 30_000;

const profile = await mkdtemp(join(tmpdir(), "player-"));
const context = await playwright.chromium.launchPersistentContext(profile, {
    executablePath: chromium,
    headless: true,
    viewport: { width: 640, height: 360 },
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--mute-audio",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--autoplay-policy=no-user-gesture-required"],
});
try {
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("console", (message) => console.error(`page: ${message.text()}`));
    await page.goto(page_url);
    const wait_for = async (condition) => {
        try {
            await page.waitForFunction(condition);
        } catch (error) {
            const state = await page.evaluate(() =>
                [video.currentTime, video.readyState, video.error?.message, errors.join("; ")].join(", "));
            throw new Error(`not within ${PATIENCE_MS} ms: ${condition} (${state})`, { cause: error });
        }
    };
    const look = () => page.evaluate(() => ({
        at: video.currentTime, shown: shown(), width: video.videoWidth, length: video.duration, errors,
    }));
    const check = ({ at, shown, width, errors }) => {
        assert.equal(width, 640);
        assert.deepEqual(errors, []);
        assert.ok(Math.abs(at - shown) < 1.5, `at second ${at} the picture is that of second ${shown}`);
    };

    await page.evaluate((source) => start(source), source);
    await wait_for("video.currentTime > 1");
    check(await look());
    await page.evaluate(() => { video.playbackRate = 2; });
    await wait_for("video.currentTime > 14");
    check(await look());
    for (const target of [40, 5, 50]) {
        await page.evaluate((target) => { video.currentTime = target; }, target);
        await wait_for(`!video.seeking && video.readyState >= 3 && video.currentTime > ${target + 1}`);
        const seen = await look();
        check(seen);
        assert.ok(seen.at < target + 10, `${seen.at} after seeking to ${target}`);
    }
    const { length } = await look();
    assert.ok(Math.abs(length - 60) < 1, `${length} s`);
    await page.screenshot({ path: screenshot });
    await wait_for("video.ended");
} finally {
    await context.close();
    await rm(profile, { recursive: true, force: true });
}
