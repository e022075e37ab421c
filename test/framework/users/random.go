// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"math/rand/v2"
	"sync"
	"time"
)

// NewRandom returns a generator whose numbers depend only on seed and stream. Several
// goroutines may use it.
func NewRandom(seed, stream uint64) *rand.Rand {
	return rand.New(&lockedSource{source: rand.NewPCG(seed, stream)}) //nolint:gosec // no secret
}

type lockedSource struct {
	mu     sync.Mutex
	source *rand.PCG
}

// Uint64 implements rand.Source.
func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.Uint64()
}

// UpTo returns a random duration below d.
func UpTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}
