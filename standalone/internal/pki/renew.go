// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"context"
	"errors"
	"slices"
	"time"
)

// CheckPeriod is how often RenewPeriodically checks. A clock that jumps ahead, for
// example after a suspend, must not leave the API unusable for long.
const CheckPeriod = time.Minute

// ErrNewCA ends RenewPeriodically: running programs only know the old authority.
var ErrNewCA = errors.New("all certificates, including the authority, had expired and were renewed: start again")

// RenewPeriodically renews certificates that are due until ctx ends. After each check it
// calls after with the renewed files and the error, if any; it retries at the next check.
func (s *Store) RenewPeriodically(ctx context.Context, after func(renewed []string, err error)) error {
	ticker := s.Clock.NewTicker(CheckPeriod)
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
