// The status page in a real browser: node browser.mjs HOST PORT WEB_PORT CHROMIUM
import assert from "node:assert/strict";
import net from "node:net";
import { chromium } from "playwright-core";

const [host, port, webPort, executablePath] = process.argv.slice(2);
const PASSWORD = "pw";

// Stands between browser and store, so that the connection can be lost while the store goes on.
class Wire {
    sockets = new Set();
    static async open() {
        const wire = new Wire();
        wire.server = net.createServer((browser) => wire.carry(browser));
        await new Promise((resolve) => wire.server.listen(0, "127.0.0.1", resolve));
        wire.url = `http://127.0.0.1:${wire.server.address().port}/_/status`;
        return wire;
    }
    carry(browser) {
        const store = net.connect(Number(webPort), host);
        for (const [from, to] of [[browser, store], [store, browser]]) {
            this.sockets.add(from);
            from.on("error", () => {});
            from.on("close", () => (this.sockets.delete(from), to.destroy()));
            from.pipe(to);
        }
    }
    reset() {
        this.sockets.forEach((socket) => socket.destroy());
    }
    cut() {
        this.server.close();
        this.reset();
    }
    stall() {
        this.sockets.forEach((socket) => (socket.unpipe(), socket.pause()));
    }
}

// SETs and GETs without pause until told to stop.
function load() {
    const socket = net.connect(Number(port), host);
    const batch = "SET browser:key 123\r\nGET browser:key\r\nHSET browser:hash a 1\r\n".repeat(50);
    socket.on("data", () => {});
    socket.on("error", () => {});
    const timer = setInterval(() => socket.write(batch), 10);
    return () => (clearInterval(timer), socket.destroy());
}

// Waits until the page has been told of so many more seconds.
async function after(page, seconds) {
    const seen = await page.evaluate(() => hist.ops.length);
    await page.waitForFunction((wanted) => hist.ops.length >= wanted, seen + seconds);
}

const text = (page, id) => page.locator(`#${id}`).innerText();

const tests = {
    async "the numbers move when load runs"(page) {
        await page.waitForFunction(() => document.getElementById("what").textContent.includes("Kayvee"));
        assert.equal(await text(page, "state"), "live");
        const stop = load();
        // The first figure may be that of a second with little load in it.
        const busy = () => {
            const shown = document.getElementById("ops").textContent;
            return Number.parseFloat(shown) * (/[kM]/.test(shown) ? 1000 : 1) > 500;
        };
        await page.waitForFunction(busy, undefined, { timeout: 20_000 });
        await page.waitForFunction(() => document.getElementById("g-ops").getAttribute("points").split(" ").length > 2);
        assert.match(await text(page, "p99"), /µs|ms/);
        assert.match(await text(page, "used"), /[KMG]iB/);
        assert.match(await text(page, "net"), /in\s+[\d.]+ (B|KiB|MiB)\/s/);
        stop();
        await page.waitForFunction(() => Number.parseFloat(document.getElementById("ops").textContent) < 1);
    },
    async "it shows where and how the store has booted"(page) {
        await page.waitForSelector("#boot svg");
        const phases = await page.locator("#boot rect").count();
        assert.ok(phases >= 2, `${phases} phases`);
        assert.match(await text(page, "what"), /Kayvee \d+\.\d+\.\d+ on (linux|tcg|kvm)/i);
    },
    async "slow commands are listed"(page) {
        const socket = net.connect(Number(port), host);
        socket.write("CONFIG SET slowlog-log-slower-than 0\r\nECHO browser-was-here\r\n");
        socket.write("CONFIG SET slowlog-log-slower-than 10000\r\n");
        await page.waitForFunction(() => document.getElementById("slow").textContent.includes("browser-was-here"));
        socket.destroy();
    },
    async "it fits a narrow window"(page) {
        await page.setViewportSize({ width: 320, height: 640 });
        const [wide, inner] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
        assert.ok(wide <= inner, `${wide} pixels in a window of ${inner}`);
        await page.setViewportSize({ width: 1280, height: 800 });
    },
    async "it is dark where the system is, and can be read"(page) {
        for (const colorScheme of ["dark", "light"]) {
            await page.emulateMedia({ colorScheme });
            const [back, front] = await page.evaluate(() => {
                // What the browser paints behind the page has the colour of the keyword Canvas.
                const probe = document.createElement("i");
                probe.style.color = "Canvas";
                document.body.append(probe);
                const light = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
                const shown = [getComputedStyle(probe).color, getComputedStyle(document.body).color].map(light);
                probe.remove();
                return shown;
            });
            const contrast = colorScheme === "dark" ? front - back : back - front;
            assert.ok(contrast > 400, `${colorScheme}: text ${front}, behind it ${back}`);
        }
    },
    async "the keyboard is enough"(page) {
        await page.keyboard.press("Tab");
        assert.equal(await page.evaluate(() => document.activeElement.id), "pause");
        await page.keyboard.press("Enter");
        assert.equal(await page.locator("#pause").getAttribute("aria-pressed"), "true");
        await page.keyboard.press("Enter");
        assert.equal(await page.locator("#pause").getAttribute("aria-pressed"), "false");
    },
    async "figures that begin anew are no negative rates"(page) {
        const stop = load();
        await after(page, 2);
        const socket = net.connect(Number(port), host);
        socket.write("CONFIG RESETSTAT\r\n");
        await after(page, 3);
        stop();
        socket.destroy();
        const rates = await page.evaluate(() => hist.ops);
        assert.ok(Math.max(...rates) > 0 && Math.min(...rates) >= 0, `rates of ${rates}`);
    },
    async "what is paused stands still"(page) {
        const graph = () => page.locator("#g-ops").getAttribute("points");
        await page.click("#pause");
        const before = await graph();
        await after(page, 2);
        assert.equal(await graph(), before);
        await page.click("#pause");
    },
    async "a new password is asked for"(page) {
        const socket = net.connect(Number(port), host);
        const loadedAnew = page.waitForEvent("load");
        socket.write(`CONFIG SET requirepass ${PASSWORD}\r\n`);
        await loadedAnew;
        await page.waitForFunction(() => document.getElementById("state").textContent === "live");
        socket.end('CONFIG SET requirepass ""\r\n').resume();
        await new Promise((resolve) => socket.on("close", resolve));
    },
    async "a silent connection is called lost, and another one opened"(page, wire) {
        wire.stall();
        await page.waitForFunction(() => document.getElementById("state").textContent.includes("connection lost"));
        assert.equal(await page.locator("#state").getAttribute("class"), "lost");
        await page.waitForFunction(() => document.getElementById("state").textContent === "live");
    },
    // A browser has six connections for a site, and somebody forgets tabs.
    async "a page that nobody sees holds no connection"(page, wire) {
        const turn = (hidden) =>
            page.evaluate((hidden) => {
                Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }, hidden);
        await turn(true);
        assert.equal(await page.evaluate(() => source.readyState), 2);
        await turn(false);
        await after(page, 1);
        assert.equal(await text(page, "state"), "live");
    },
    async "a lost connection is said, and found again"(page, wire) {
        const address = wire.server.address().port;
        wire.cut();
        await page.waitForFunction(() => document.getElementById("state").textContent.includes("connection lost"));
        // A store that is busy refuses it at first.
        let refused = false;
        const carry = (browser) => {
            if (refused) return wire.carry(browser);
            refused = true;
            browser.end("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        };
        wire.server = net.createServer(carry).listen(address, "127.0.0.1");
        await page.waitForFunction(() => document.getElementById("state").textContent === "live");
    },
};

const wire = await Wire.open();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
// What a user would type who is asked.
const page = await browser.newPage({ httpCredentials: { username: "default", password: PASSWORD } });
page.setDefaultTimeout(15_000);
const errors = [];
page.on("pageerror", (error) => errors.push(error.message));
const requests = [];
page.on("request", (request) => requests.push(new URL(request.url()).pathname));
await page.goto(wire.url);
let [passed, failed] = [0, 0];
for (const [name, test] of Object.entries(tests)) {
    try {
        await test(page, wire);
        passed += 1;
        console.log(`ok ${name}`);
    } catch (error) {
        failed += 1;
        console.log(`FAILED ${name}: ${error.message}`);
    }
}
const foreign = requests.filter((path) => !path.startsWith("/_/status") && path !== "/favicon.ico");
if (errors.length + foreign.length > 0) {
    failed += 1;
    console.log(`FAILED the page's script has no errors and asks for nothing else: ${[...errors, ...foreign].join(", ")}`);
}
await browser.close();
wire.cut();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
