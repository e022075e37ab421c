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

// ErrNewCA means that RenewPeriodically has created a new CA. The process must start again, since its
// components only know the old CA.
var ErrNewCA = errors.New("all certificates, including the authority, had expired and were renewed: start again")

// RenewPeriodically renews certificates that are due until ctx ends. After each check it calls
// afterCheck with the renewed files and the error, if any. The next check tries again.
func (s *Store) RenewPeriodically(ctx context.Context, afterCheck func(renewed []string, err error)) error {
	ticker := s.Clock.NewTicker(CheckPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		renewed, err := s.Ensure()
		afterCheck(renewed, err)
		if slices.Contains(renewed, caFile) {
			return ErrNewCA
		}
	}
}
