// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"fmt"

	"github.com/moby/moby/api/types/jsonstream"
)

// progress sums up the progress of a pull, which is reported by layer.
type progress map[string]layerProgress

type layerProgress struct {
	current, total int64 // a registry need not state the total, which is 0 then
	complete       bool
}

// addMessage adds a message of the engine, and passes on how many bytes were received since the last one.
func (p progress) addMessage(m jsonstream.Message, f Fetch) error {
	if m.ID == "" {
		return nil
	}
	before := p[m.ID]
	now := before
	switch m.Status {
	case "Downloading":
		if m.Progress != nil {
			now.current, now.total = max(m.Progress.Current, before.current), max(m.Progress.Total, 0)
		}
	case "Download complete", "Extracting", "Pull complete", "Already exists":
		now.total = max(now.total, now.current)
		now.current, now.complete = now.total, true
	}
	p[m.ID] = now
	f.Received(max(now.current-before.current, 0))
	if total := p.expectedBytes(); total > 0 {
		return f.Expect(total)
	}
	return nil
}

// expectedBytes returns how many bytes all layers have, as far as that is known. Until all layers are complete, it is
// more than was received.
func (p progress) expectedBytes() (total int64) {
	for _, l := range p {
		if l.complete {
			total += l.total
		} else {
			total += max(l.total, l.current+1)
		}
	}
	return total
}

// describe returns the progress for people, such as "pulling nginx: 34% (12.3/36.1 MB)". The size of a
// layer that has not begun is unknown, so the total can grow.
func (p progress) describe(image string) string {
	var current, total int64
	complete := true
	for _, l := range p {
		if complete = complete && l.complete; l.total > 0 {
			current += l.current
			total += l.total
		}
	}
	switch {
	case total == 0:
		return "pulling " + image
	case complete:
		return fmt.Sprintf("pulling %s: unpacking %.1f MB", image, float64(total)/1e6)
	}
	return fmt.Sprintf("pulling %s: %d%% (%.1f/%.1f MB)", image, current*100/total, float64(current)/1e6, float64(total)/1e6)
}
