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
// For each thing that is waited for, on a machine that is busy with other things.
const PATIENCE_MS = 180_000;

const profile = await mkdtemp(join(tmpdir(), "player-"));
const context = await playwright.chromium.launchPersistentContext(profile, {
    executablePath: chromium,
    headless: true,
    timeout: PATIENCE_MS,
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
                [video.currentTime, shown(), video.readyState, video.error?.message, errors.join("; ")].join(", "));
            throw new Error(`not within ${PATIENCE_MS} ms: ${condition} (${state})`, { cause: error });
        }
    };
    const look = () => page.evaluate(() => ({ at: video.currentTime, width: video.videoWidth, length: video.duration, errors }));
    // Where it stands still the picture is that of its second; while it plays, a busy machine shows pictures late.
    const check = async () => {
        await page.evaluate(() => video.pause());
        await wait_for("!video.seeking && video.readyState >= 2 && Math.abs(video.currentTime - shown()) < 1.5");
        const { at, width, errors } = await look();
        assert.equal(width, 640);
        assert.deepEqual(errors, []);
        return at;
    };
    const play = () => page.evaluate(() => video.play());

    await page.evaluate((source) => start(source), source);
    await wait_for("video.currentTime > 1");
    await check();
    await page.evaluate(() => { video.playbackRate = 2; });
    await play();
    await wait_for("video.currentTime > 14");
    for (const target of [40, 5, 50]) {
        await check();
        await page.evaluate((target) => { video.currentTime = target; }, target);
        const at = await check();
        assert.ok(Math.abs(at - target) < 1, `${at} after seeking to ${target}`);
        await play();
        await wait_for(`video.currentTime > ${target + 1}`);
    }
    const { length } = await look();
    assert.ok(Math.abs(length - 60) < 1, `${length} s`);
    await page.screenshot({ path: screenshot });
    await wait_for("video.ended");
} finally {
    await context.close();
    await rm(profile, { recursive: true, force: true });
}
