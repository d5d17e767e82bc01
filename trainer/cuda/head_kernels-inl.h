// Heads of queries and keys: norms and rotation, forward and backward. Included by decoder_kernels-inl.h.

// ---- heads ----

ISTHMUS_LANES Index tokens_of(const cpu::Heads& a) { return a.sequences * a.length; }
ISTHMUS_LANES Index heads_of(const cpu::Heads& a) { return a.heads + 2 * a.kv_heads; }

/// One lane's part of a head: a group of its first half, and the elements of the second half that are rotated
/// with it.
struct Halves {
  float first[group], second[group];
};
template <class T>
ISTHMUS_LANES Halves read_halves(const T* head, Index half, Index at, bool exists) {
  const Index n = exists ? half : 0;
  const auto first = fetch(head, n, at), second = fetch(head + half, n, at);
  Halves x;
  unpack(first, x.first);
  unpack(second, x.second);
  return x;
}
template <class T>
ISTHMUS_LANES void write_halves(const Halves& x, T* head, Index half, Index at, bool exists) {
  put_dense(x.first, head, exists ? half : 0, at);
  put_dense(x.second, head + half, exists ? half : 0, at);
}
ISTHMUS_LANES float squares_of(const Halves& x) {
  float sum = 0;
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) sum += x.first[k] * x.first[k] + x.second[k] * x.second[k];
  return sum;
}
/// Rotates by the position's angles, backwards if `back`.
ISTHMUS_LANES void turn(const cpu::Heads& a, unsigned position, Index at, bool back, Halves& x) {
  const Index half = a.head_dim / 2;
  float cos[group], sin[group];
  unpack(fetch(a.cos + position * half, half, at), cos);
  unpack(fetch(a.sin + position * half, half, at), sin);
  ISTHMUS_UNROLL
  for (Index k = 0; k < group; ++k) {
    const float sine = back ? -sin[k] : sin[k], before = x.first[k];
    x.first[k] = before * cos[k] - x.second[k] * sine;
    x.second[k] = x.second[k] * cos[k] + before * sine;
  }
}

/// `lanes` neighbouring lanes have one head of a token: head_dim is 8 * lanes.
template <class T, int lanes>
__global__ void rotate_heads(RotateHeads<T> a) {
  const unsigned all = heads_of(a.at), items = tokens_of(a.at) * all, length = a.at.length;
  constexpr unsigned at_once = threads / lanes;
  const Index dim = a.at.head_dim, half = dim / 2, at = own_lane() % lanes * group;
  for (unsigned begin = blockIdx.x * at_once; begin < items; begin += gridDim.x * at_once) {
    const unsigned item = begin + threadIdx.x / lanes, head = item % all;
    const bool exists = item < items, is_value = head >= a.at.heads + a.at.kv_heads;
    auto x = read_halves(a.qkv + item * dim, half, at, exists);
    if (a.norms != nullptr) {
      const float mean = over_lanes<lanes>(squares_of(x)) / static_cast<float>(dim);
      const float rstd = is_value ? 1 : 1 / sqrtf(mean + a.at.eps);
      const auto weight = read_halves(a.norms + (head < a.at.heads ? 0 : dim), half, at, exists);
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        x.first[k] *= is_value ? 1 : rstd * weight.first[k];
        x.second[k] *= is_value ? 1 : rstd * weight.second[k];
      }
    }
    if (a.at.cos != nullptr && !is_value) turn(a.at, item / all % length, at, false, x);
    write_halves(x, a.out + item * dim, half, at, exists);
  }
}

/// Each block of threads has `rows_at_once` tokens.
template <class T, int lanes>
__global__ void rotate_heads_backward(RotateHeadsBackward<T> a) {
  __shared__ float sums[2][max_head_dim];
  constexpr unsigned at_once = threads / lanes;
  const unsigned all = heads_of(a.at), items = tokens_of(a.at) * all, length = a.at.length;
  const unsigned queries = a.at.heads, kinds = a.at.kv_heads,
                 blocks = (tokens_of(a.at) + rows_at_once - 1) / rows_at_once;
  const Index dim = a.at.head_dim, half = dim / 2, at = own_lane() % lanes * group;
  for (unsigned block = blockIdx.x; block < blocks; block += gridDim.x) {
    const unsigned end = (block + 1) * rows_at_once * all < items ? (block + 1) * rows_at_once * all : items;
    Halves of_queries = {}, of_keys = {};
    for (unsigned begin = block * rows_at_once * all; begin < end; begin += at_once) {
      const unsigned item = begin + threadIdx.x / lanes, token = item / all, head = item % all;
      const bool exists = item < end, is_query = head < queries, is_value = head >= queries + kinds;
      const T* grad = is_query   ? a.grad_q + (token * queries + head) * dim
                      : is_value ? a.grad_v + (token * kinds + head - queries - kinds) * dim
                                 : a.grad_k + (token * kinds + head - queries) * dim;
      auto g = read_halves(grad, half, at, exists);
      if (a.norms == nullptr) {
        if (a.at.cos != nullptr && !is_value) turn(a.at, token % length, at, true, g);
        write_halves(g, a.grad_qkv + item * dim, half, at, exists);
        continue;
      }
      auto x = read_halves(a.qkv + item * dim, half, at, exists);
      const auto weight = read_halves(a.norms + (is_query ? 0 : dim), half, at, exists);
      if (a.at.cos != nullptr && !is_value) turn(a.at, token % length, at, true, g);
      const float rstd = 1 / sqrtf(over_lanes<lanes>(squares_of(x)) / static_cast<float>(dim) + a.at.eps);
      float along = 0;
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        x.first[k] *= rstd;
        x.second[k] *= rstd;
        along += g.first[k] * weight.first[k] * x.first[k] + g.second[k] * weight.second[k] * x.second[k];
      }
      along = over_lanes<lanes>(along) / static_cast<float>(dim);
      const float query = is_query ? 1 : 0, key = is_query || is_value ? 0 : 1;
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        of_queries.first[k] += query * g.first[k] * x.first[k];
        of_queries.second[k] += query * g.second[k] * x.second[k];
        of_keys.first[k] += key * g.first[k] * x.first[k];
        of_keys.second[k] += key * g.second[k] * x.second[k];
        if (is_value) continue;
        g.first[k] = rstd * (g.first[k] * weight.first[k] - x.first[k] * along);
        g.second[k] = rstd * (g.second[k] * weight.second[k] - x.second[k] * along);
      }
      write_halves(g, a.grad_qkv + item * dim, half, at, exists);
    }
    if (a.norms == nullptr) continue;
    for (unsigned turn = 0; turn < at_once; ++turn) {
      __syncthreads();
      if (threadIdx.x / lanes != turn) continue;
      ISTHMUS_UNROLL
      for (Index k = 0; k < group; ++k) {
        const auto add = [&](float& sum, float x) { sum = (turn == 0 ? 0 : sum) + x; };
        add(sums[0][at + k], of_queries.first[k]);
        add(sums[0][half + at + k], of_queries.second[k]);
        add(sums[1][at + k], of_keys.first[k]);
        add(sums[1][half + at + k], of_keys.second[k]);
      }
    }
    __syncthreads();
    for (Index c = threadIdx.x; c < 2 * dim; c += threads)
      a.block_sums[block * 2 * dim + c] = c < dim ? sums[0][c] : sums[1][c - dim];
    __syncthreads();  // before the next block's sums
  }
}
