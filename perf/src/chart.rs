//! Charts of several panels that say by themselves what they show: title, machine, axes with units, which direction is
//! better, and one colour a broker.

use std::path::Path;

use anyhow::anyhow;
use plotters::coord::Shift;
use plotters::prelude::*;

const WIDTH: u32 = 560;
const HEIGHT: u32 = 360;
const HEAD: u32 = 70;
const COLORS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
];

/// One line.
#[derive(Debug, Clone)]
pub struct Line {
    pub name: String,
    /// which colour; the same for the same broker in every panel
    pub color: usize,
    pub dashed: bool,
    pub points: Vec<(f64, f64)>,
}

/// One coordinate system.
#[derive(Debug, Clone)]
pub struct Panel {
    /// what, its unit, and what is better
    pub title: String,
    pub x: String,
    pub lines: Vec<Line>,
}

/// All panels, two in a row, under a title and a line about machine and load.
#[derive(Debug, Clone)]
pub struct Chart {
    pub title: String,
    pub subtitle: String,
    pub panels: Vec<Panel>,
}

impl Chart {
    /// Draws it as SVG.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        self.draw(path).map_err(|error| anyhow!("`{}` cannot be drawn: {error}", path.display()))?;
        println!("{}", path.display());
        Ok(())
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let rows = self.panels.len().div_ceil(2);
        let root = SVGBackend::new(path, (2 * WIDTH, HEAD + HEIGHT * rows as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, body) = root.split_vertically(HEAD);
        head.draw_text(&self.title, &("sans-serif", 22).into_text_style(&head), (16, 12))?;
        head.draw_text(&self.subtitle, &("sans-serif", 14).into_text_style(&head).color(&BLACK.mix(0.7)), (16, 44))?;
        for (panel, area) in self.panels.iter().zip(body.split_evenly((rows, 2))) {
            panel.draw(&area)?;
        }
        root.present()?;
        Ok(())
    }
}

impl Panel {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.lines.iter().flat_map(|line| line.points.iter());
        let top = |values: f64, least: f64| if values > least { values * 1.08 } else { least };
        let x_top = top(points().map(|p| p.0).fold(0.0, f64::max), 1.0);
        let y_top = top(points().map(|p| p.1).fold(0.0, f64::max), 1e-3);
        let mut builder = ChartBuilder::on(area);
        builder.caption(&self.title, ("sans-serif", 15)).margin(12);
        builder.x_label_area_size(38).y_label_area_size(62);
        // From zero: a cut axis would make small differences look large.
        let mut chart = builder.build_cartesian_2d(0.0..x_top, 0.0..y_top)?;
        let label = |value: &f64| short(*value);
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for line in &self.lines {
            let color = COLORS[line.color % COLORS.len()];
            let style = color.stroke_width(2);
            let drawn = if line.dashed {
                chart.draw_series(DashedLineSeries::new(line.points.iter().copied(), 6, 4, style))?
            } else {
                chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?
            };
            let dashed = line.dashed;
            drawn.label(&line.name).legend(move |(x, y)| {
                let end = if dashed { x + 8 } else { x + 18 };
                PathElement::new(vec![(x, y), (end, y)], style)
            });
            chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        }
        let mut labels = chart.configure_series_labels();
        labels
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .label_font(("sans-serif", 13));
        labels.draw()?;
        Ok(())
    }
}

/// 12k, 2.5, 0.04.
fn short(value: f64) -> String {
    let (value, unit) = if value.abs() >= 1e6 {
        (value / 1e6, "M")
    } else if value.abs() >= 10_000.0 {
        (value / 1e3, "k")
    } else {
        (value, "")
    };
    let digits = if value.abs() >= 100.0 || value.fract().abs() < 1e-9 { 0 } else { 2 };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// One line about this machine: cores, processor, memory, system.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        text.lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let memory = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|kb| kb.split_whitespace().next()?.parse::<u64>().ok())
        .map(|kb| format!(", {} GB", kb.div_ceil(1024 * 1024)));
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} cores of {cpu}{}, {} {}", memory.unwrap_or_default(), std::env::consts::OS, kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.04, 2.5, 100.0, 5000.0, 12_000.0, 2_500_000.0].map(short);
        assert_eq!(shown, ["0", "0.04", "2.5", "100", "5000", "12k", "2.5M"]);
    }

    #[test]
    fn a_chart_names_everything_it_shows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chart.svg");
        let line = |name: &str, color, dashed| Line {
            name: name.into(),
            color,
            dashed,
            points: vec![(100.0, 10.0), (5000.0, 20.0)],
        };
        let panel = |title: &str| Panel {
            title: title.into(),
            x: "connected subscribers".into(),
            lines: vec![line("ciqadamq", 0, false), line("mosquitto p99", 1, true)],
        };
        let chart =
            Chart { title: "What it is".into(), subtitle: machine(), panels: vec![panel("first"), panel("second")] };
        chart.write(&path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["What it is", "first", "second", "connected subscribers", "ciqadamq", "mosquitto p99", "5000"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn a_panel_of_nothing_can_be_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let line = Line { name: "x".into(), color: 0, dashed: false, points: vec![(0.0, 0.0)] };
        let panel = Panel { title: "t".into(), x: "x".into(), lines: vec![line] };
        let chart = Chart { title: "t".into(), subtitle: String::new(), panels: vec![panel] };
        chart.write(&dir.path().join("empty.svg")).unwrap();
    }
}
