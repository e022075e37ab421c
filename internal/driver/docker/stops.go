// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"sync"
	"time"
)

// stops records which runs were asked to end, because Docker does not show that.
// After a restart of Drover the worst effect is one more signal.
type stops struct {
	mu   sync.Mutex
	byID map[string]stop
}

type stop struct {
	run    string
	by     time.Time
	forced bool
}

// String is for people.
func (s stop) String() string {
	switch {
	case s.forced:
		return "stopping, forced"
	case s.by.IsZero():
		return "stopping"
	}
	return fmt.Sprintf("stopping, forced at %s UTC", s.by.UTC().Format(time.TimeOnly))
}

// of returns the stop of the current run, if it was asked to end.
func (s *stops) of(r record) (stop, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byID[r.id]
	return st, ok && r.alive() && st.run == r.run()
}

func (s *stops) put(r record, st stop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]stop{}
	}
	st.run = r.run()
	s.byID[r.id] = st
}

func (s *stops) prune(there map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prune(s.byID, there)
}
