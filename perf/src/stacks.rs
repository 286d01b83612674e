//! Call stacks as `perf script` prints them, and their flame graph: a box is as wide as the share of samples in which
//! its function was on the stack, and stands on its caller. The pointer on a box shows name and share.

use std::collections::BTreeMap;
use std::fmt::Write as _;

const WIDTH: f64 = 1600.0;
const ROW: f64 = 17.0;
const HEAD: f64 = 48.0;
/// Boxes narrower than this are left out. Pixels
const NARROW: f64 = 0.4;
/// Width of a letter, about. Pixels
const LETTER: f64 = 6.6;

/// A function, seen from one chain of callers.
#[derive(Debug, Default)]
pub struct Frame {
    /// in which it was on the stack
    pub samples: u64,
    callees: BTreeMap<String, Frame>,
}

/// Reads samples: a head line, the frames from the innermost outwards, an empty line.
pub fn read(script: &str) -> Frame {
    let mut root = Frame::default();
    let mut stack: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in script.lines().chain([""]) {
        if line.trim().is_empty() {
            if inside {
                root.add(stack.drain(..).rev());
            }
            inside = false;
        } else if line.starts_with(char::is_whitespace) {
            stack.extend(function(line));
        } else {
            inside = true;
        }
    }
    root
}

/// `  55d8 name+0x12 (/path)` without address, offset and path.
fn function(line: &str) -> Option<&str> {
    let (_, rest) = line.trim().split_once(' ')?;
    let name = rest.rsplit_once(" (").map_or(rest, |(name, _)| name);
    Some(name.rsplit_once("+0x").map_or(name, |(name, _)| name))
}

impl Frame {
    fn add<'a>(&mut self, stack: impl Iterator<Item = &'a str>) {
        self.samples += 1;
        let mut frame = self;
        for name in stack {
            // Not `entry`, which would copy the name of every frame of every sample.
            if !frame.callees.contains_key(name) {
                frame.callees.insert(name.into(), Self::default());
            }
            let Some(callee) = frame.callees.get_mut(name) else { return };
            callee.samples += 1;
            frame = callee;
        }
    }

    /// Rows of boxes that are wide enough to be drawn.
    fn depth(&self, least: f64) -> usize {
        let callees = self.callees.values().filter(|callee| callee.samples as f64 >= least);
        1 + callees.map(|callee| callee.depth(least)).max().unwrap_or(0)
    }

    /// Draws all that is below this frame.
    pub fn svg(&self, title: &str) -> String {
        let per_sample = WIDTH / self.samples.max(1) as f64;
        let height = HEAD + ROW * self.depth(NARROW / per_sample) as f64 + 8.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" \
             font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"8\" y=\"20\" font-size=\"16\">{}</text>\n<text x=\"8\" y=\"38\">{} samples; a box is as wide as \
             its share of CPU time and stands on its caller</text>\n",
            escape(title),
            self.samples
        );
        let all = Drawing { total: self.samples, per_sample, bottom: height - 8.0 };
        all.boxes(self, "all", 0.0, 0, &mut svg);
        svg.push_str("</svg>\n");
        svg
    }
}

struct Drawing {
    total: u64,
    per_sample: f64,
    bottom: f64,
}

impl Drawing {
    fn boxes(&self, frame: &Frame, name: &str, x: f64, row: usize, svg: &mut String) {
        let width = frame.samples as f64 * self.per_sample;
        if width < NARROW {
            return;
        }
        let y = self.bottom - ROW * (row + 1) as f64;
        let share = 100.0 * frame.samples as f64 / self.total as f64;
        let letters = (width / LETTER) as usize;
        let label: String = if letters > 3 { name.chars().take(letters - 1).collect() } else { String::new() };
        // Writing to a string cannot fail.
        writeln!(
            svg,
            "<g><title>{} ({share:.2} %)</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
             fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            escape(name),
            ROW - 1.0,
            color(name),
            x + 2.0,
            y + 12.0,
            escape(&label)
        )
        .ok();
        let mut x = x;
        for (name, callee) in &frame.callees {
            self.boxes(callee, name, x, row + 1, svg);
            x += callee.samples as f64 * self.per_sample;
        }
    }
}

/// Kernel blue, the runtime green, the rest warm; the same name has the same colour everywhere.
fn color(name: &str) -> String {
    let shade = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % 40;
    let kernel = ["sys_", "tcp_", "ip_", "sk", "sock", "ep_", "__", "do_", "entry_", "net", "vfs_"];
    if kernel.iter().any(|prefix| name.starts_with(prefix)) {
        format!("hsl(210,60%,{}%)", 68 + shade / 3)
    } else if name.contains("tokio") || name.contains("mio::") {
        format!("hsl(120,40%,{}%)", 66 + shade / 3)
    } else {
        format!("hsl({},80%,{}%)", 20 + shade, 66 + shade / 4)
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "worker 12 34.5: 1001 cpu-clock:\n\t   55d8 <T as X>::inner+0x12 (/bin/x)\n\t   44 outer+0x3 (/bin/x)\n\n\
                          worker 12 34.6: 1001 cpu-clock:\n\t   99 other (deleted) (/bin/x)\n\t   44 outer+0x9 (/bin/x)\n";

    #[test]
    fn samples_are_counted_by_their_callers() {
        let root = read(SCRIPT);
        assert_eq!(root.samples, 2);
        let outer = &root.callees["outer"];
        assert_eq!(outer.samples, 2);
        assert_eq!(outer.callees["<T as X>::inner"].samples, 1);
        assert_eq!(outer.callees["other (deleted)"].samples, 1);
        assert_eq!(read("").samples, 0);
    }

    #[test]
    fn every_function_stands_in_the_graph_with_its_share() {
        let svg = read(SCRIPT).svg("A & B");
        assert!(svg.contains("A &amp; B") && svg.contains("outer (100.00 %)"), "{svg}");
        assert!(svg.contains("&lt;T as X&gt;::inner (50.00 %)"), "{svg}");
    }
}
