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
	current, total int64
	complete       bool
}

func (p progress) addMessage(m jsonstream.Message) {
	if m.ID == "" {
		return
	}
	now := p[m.ID]
	switch m.Status {
	case "Downloading":
		if m.Progress != nil && m.Progress.Total > 0 {
			now.current, now.total = m.Progress.Current, m.Progress.Total
		}
	case "Download complete", "Extracting", "Pull complete", "Already exists":
		now.current, now.complete = now.total, true
	}
	p[m.ID] = now
}

// describe returns the progress for people, such as "pulling nginx: 34% (12.3/36.1 MB)". The size of a
// layer that has not begun is unknown, so the total can grow.
func (p progress) describe(image string) string {
	var current, total int64
	complete := true
	for _, l := range p {
		current += l.current
		total += l.total
		complete = complete && l.complete
	}
	switch {
	case total == 0:
		return "pulling " + image
	case complete:
		return fmt.Sprintf("pulling %s: unpacking %.1f MB", image, float64(total)/1e6)
	}
	return fmt.Sprintf("pulling %s: %d%% (%.1f/%.1f MB)", image, current*100/total, float64(current)/1e6, float64(total)/1e6)
}
