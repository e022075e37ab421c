// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"context"
	"errors"
	"slices"
	"time"
)

// CheckEvery is how often Keep looks. A clock that jumps ahead, as after a
// suspend, must not leave the API unusable for long.
const CheckEvery = time.Minute

// ErrNewCA ends Keep: programs that run know the old authority alone.
var ErrNewCA = errors.New("the clock has passed the end of all certificates, they were made anew: start again")

// Keep renews what is due until ctx ends, and calls after each time with the
// files that were renewed and with what went wrong, which it tries again.
func (s *Store) Keep(ctx context.Context, after func(renewed []string, err error)) error {
	ticker := s.Clock.NewTicker(CheckEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		renewed, err := s.Ensure()
		after(renewed, err)
		if slices.Contains(renewed, caFile) {
			return ErrNewCA
		}
	}
}
