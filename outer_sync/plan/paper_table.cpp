#include "isthmus/outer_sync/plan/paper_table.h"

#include <algorithm>
#include <cmath>

#include "isthmus/outer_sync/plan/simulate.h"

namespace isthmus::outer_sync::plan {

namespace {

struct Model {
  std::string_view name;
  double parameters;
  std::uint32_t layers;
  double step_seconds;
};
constexpr std::array<Model, 3> models = {
    {{"1B", 1e9, 24, 0.1}, {"10B", 10e9, 48, 0.8}, {"100B", 100e9, 108, 4.9}}};

struct Method {
  std::string_view name;
  bool streams = false;
  std::uint64_t sync_every = 100, sync_delay = 0;
  double bits = 16;
};
constexpr std::uint32_t layers_of_fragment = 3;
constexpr std::array<Method, 5> methods = {
    {{.name = "data parallel", .sync_every = 1},
     {.name = "DiLoCo"},
     {.name = "streaming", .streams = true},
     {.name = "+ overlap", .streams = true, .sync_delay = 1},
     {.name = "+ 4 bits", .streams = true, .sync_delay = 1, .bits = 4}}};

constexpr double printed[3][5][5] = {{{86.8, 152.6, 184.2, 222.3, 569.0},
                                      {1.4, 6.2, 13.3, 23.3, 86.8},
                                      {1.4, 5.2, 9.1, 16.0, 28.1},
                                      {1.4, 4.3, 6.2, 9.1, 11.0},
                                      {0.4, 0.9, 1.7, 2.0, 3.0}},
                                     {{104.8, 222.3, 222.3, 268.3, 471.5},
                                      {1.7, 7.5, 16.0, 33.9, 104.8},
                                      {1.7, 5.2, 9.1, 13.3, 19.3},
                                      {1.7, 3.6, 5.2, 6.2, 7.5},
                                      {0.4, 0.9, 1.4, 1.4, 1.7}},
                                     {{184.2, 323.8, 390.7, 390.7, 471.5},
                                      {3.0, 11.0, 23.3, 49.4, 184.2},
                                      {2.4, 6.2, 9.1, 11.0, 19.3},
                                      {1.7, 3.6, 4.3, 5.2, 5.2},
                                      {0.5, 0.9, 1.1, 1.1, 1.4}}};

/// Two replicas; all layers have the same size. A layer is sent when its backward pass is over; the backward
/// pass takes the last two thirds of a step and goes from the last layer to the first. Layers are strided
/// over fragments.
Simulated run_of(const Model& model, const Method& method, double gigabits) {
  constexpr double backward = 2.0 / 3;
  const auto fragments = method.streams ? model.layers / layers_of_fragment : 1;
  const double bytes = model.parameters / model.layers * method.bits / 8;
  const double rate = gigabits * 1e9 / 8;
  Simulated run{{.replicas = {2, Replica{model.step_seconds, rate, unlimited}},
                 .place = {0, 1},
                 .one_way = {0, 0, 0, 0},
                 .path = {}},
                std::vector<Fragment>(fragments),
                Schedule(fragments, method.sync_every, method.sync_delay, 0),
                method.sync_every,
                3 * method.sync_every};
  for (std::uint32_t i = 0; i < model.layers; ++i) {
    const auto layer = model.layers - 1 - i;
    Piece piece;
    piece.shares = {{0, bytes / 2}, {1, bytes / 2}};
    piece.in_step = 1 - backward + backward * (i + 1) / model.layers;
    run.fragments[layer % fragments].pieces.push_back(std::move(piece));
  }
  return run;
}

std::size_t nearest(const std::vector<double>& grid, double gigabits) {
  const auto distance = [&](double point) { return std::abs(std::log(point / gigabits)); };
  return static_cast<std::size_t>(std::ranges::min_element(grid, {}, distance) - grid.begin());
}

/// The last grid point at which the level is not reached.
std::size_t last_below(const std::vector<double>& grid, const Model& model, const Method& method,
                       double level) {
  const auto reached = std::partition_point(grid.begin(), grid.end(), [&](double gigabits) {
    return simulate(run_of(model, method, gigabits)).utilization() < level;
  });
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(1, reached - grid.begin()) - 1);
}

}  // namespace

std::vector<double> paper_grid() {
  constexpr int points = 50;
  std::vector<double> grid;
  grid.reserve(points);
  for (int i = 0; i < points; ++i) grid.push_back(std::pow(10.0, -1 + 4.0 * i / (points - 1)));
  return grid;
}

std::vector<PaperRow> paper_table() {
  const auto grid = paper_grid();
  std::vector<PaperRow> rows;
  for (std::size_t i = 0; i < models.size(); ++i) {
    for (std::size_t j = 0; j < methods.size(); ++j) {
      PaperRow row{models[i].name, methods[j].name, {}, {}, {}};
      for (std::size_t k = 0; k < paper_levels.size(); ++k) {
        const auto ours = last_below(grid, models[i], methods[j], paper_levels[k]);
        row.paper[k] = printed[i][j][k];
        row.ours[k] = grid[ours];
        row.apart[k] = static_cast<int>(ours) - static_cast<int>(nearest(grid, row.paper[k]));
      }
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace isthmus::outer_sync::plan
