// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Random is a random generator for several workers.
type Random struct {
	mu     sync.Mutex
	random *rand.Rand
}

// NewRandom returns the generator of a seed and a stream, with the same results for the same
// two.
func NewRandom(seed, stream uint64) *Random {
	return &Random{random: rand.New(rand.NewPCG(seed, stream))} //nolint:gosec // no secret
}

// DurationUpTo returns a random duration below d.
func (c *Random) DurationUpTo(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.random.Int64N(int64(d)))
}

// IntN returns a random number below n.
func (c *Random) IntN(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

// WithProbability reports true in that share of the calls.
func (c *Random) WithProbability(share float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.Float64() < share
}

// Shuffle puts n elements into a random order.
func (c *Random) Shuffle(n int, swap func(i, j int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.random.Shuffle(n, swap)
}
