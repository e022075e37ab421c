// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"

	"github.com/moby/moby/api/types/jsonstream"
)

// progress sums up the progress of a pull, which is reported by layer.
type progress struct {
	layers map[string]layer
}

type layer struct {
	current, total int64
	here           bool
}

func (p *progress) add(m jsonstream.Message) {
	if m.ID == "" {
		return
	}
	if p.layers == nil {
		p.layers = map[string]layer{}
	}
	now := p.layers[m.ID]
	switch m.Status {
	case "Downloading":
		if m.Progress != nil && m.Progress.Total > 0 {
			now.current, now.total = m.Progress.Current, m.Progress.Total
		}
	case "Download complete", "Extracting", "Pull complete", "Already exists":
		now.current, now.here = now.total, true
	}
	p.layers[m.ID] = now
}

// text is for people, such as "pulling nginx: 34% (12.3/36.1 MB)". The size of a layer
// that has not begun is unknown, so the total can grow.
func (p *progress) text(image string) string {
	var current, total int64
	here := true
	for _, l := range p.layers {
		current += l.current
		total += l.total
		here = here && l.here
	}
	switch {
	case total == 0:
		return "pulling " + image
	case here:
		return fmt.Sprintf("pulling %s: unpacking %.1f MB", image, float64(total)/1e6)
	}
	return fmt.Sprintf("pulling %s: %d%% (%.1f/%.1f MB)", image, current*100/total, float64(current)/1e6, float64(total)/1e6)
}
