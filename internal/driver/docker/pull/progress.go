// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"fmt"

	"github.com/moby/moby/api/types/jsonstream"
)

// progress has the progress of a pull by layer, as the engine reports it.
type progress map[string]layerProgress

type layerProgress struct {
	current, total int64 // bytes; total is 0 if the registry does not state it
	complete       bool
}

// addMessage adds a message of the engine. It passes the newly received bytes and the expected size on to f.
func (p progress) addMessage(m jsonstream.Message, f Fetch) error {
	if m.ID == "" {
		return nil
	}
	previous := p[m.ID]
	now := previous
	switch m.Status {
	case "Downloading":
		if m.Progress != nil {
			now.current, now.total = max(m.Progress.Current, previous.current), max(m.Progress.Total, 0)
		}
	case "Download complete", "Extracting", "Pull complete", "Already exists":
		now.total = max(now.total, now.current)
		now.current, now.complete = now.total, true
	}
	p[m.ID] = now
	f.Received(max(now.current-previous.current, 0))
	if total := p.expectedBytes(); total > 0 {
		return f.Expect(total)
	}
	return nil
}

// expectedBytes returns the size of all layers that is known so far. It exceeds the received bytes until all layers are
// complete.
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

// describe returns a status such as "pulling nginx: 34% (12.3/36.1 MB)". The total can grow, since the size
// of a layer is unknown before its download begins.
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
