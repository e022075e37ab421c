// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storekeeper

import (
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

func TestShouldDefragment(t *testing.T) {
	t.Parallel()
	const quota, long = 100, time.Hour
	for name, c := range map[string]struct {
		facts

		want bool
	}{
		"a small file":                {facts{file: 100, inUse: 1, sinceDefragment: long}, false},
		"a large file in use":         {facts{file: 290, inUse: 280, sinceDefragment: long}, false},
		"a large file that is free":   {facts{file: 290, inUse: 100, sinceDefragment: long}, true},
		"the same again":              {facts{file: 290, inUse: 100, sinceDefragment: time.Minute}, false},
		"a full file":                 {facts{file: 300, inUse: 250, isFull: true, sinceDefragment: time.Minute}, true},
		"a full file in use":          {facts{file: 300, inUse: 295, isFull: true, sinceDefragment: long}, false},
		"at a start":                  {facts{file: 150, inUse: 50, isStart: true}, true},
		"at a start, a small file":    {facts{file: 90, inUse: 1, isStart: true}, false},
		"at a start, much history":    {facts{file: 290, inUse: 280, objects: 50, isStart: true}, true},
		"a full file, much history":   {facts{file: 300, inUse: 295, objects: 50, isFull: true, sinceDefragment: long}, true},
		"at a start, a file in use":   {facts{file: 290, inUse: 200, isStart: true}, false},
		"a full file at once, again":  {facts{file: 300, inUse: 250, isFull: true, sinceDefragment: time.Second}, false},
		"a full file that was in use": {facts{file: 300, inUse: 281, isFull: true, sinceDefragment: long}, true},
	} {
		c.quota, c.fileLimit = quota, 3*quota
		if c.objects == 0 {
			c.objects = c.inUse
		}
		assert.Equal(t, name, c.shouldDefragment(), c.want)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		facts

		want time.Duration
	}{
		"little history": {facts{history: 10}, usualRetention},
		"much history":   {facts{history: 20}, shortRetention},
		"a full store":   {facts{isFull: true}, 0},
		"at a start":     {facts{isStart: true}, 0},
	} {
		c.quota = 100
		assert.Equal(t, name, c.retention(), c.want)
	}
}

func TestTrim(t *testing.T) {
	t.Parallel()
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	p := revisionHistory{{at(1), 10}, {at(2), 20}, {at(3), 30}}
	got := p.trimBefore(at(0))
	assert.True(t, got == 0 && len(p) == 3, "before all: %d, %v", got, p)
	got = p.trimBefore(at(2))
	assert.True(t, got == 20 && len(p) == 1, "in between: %d, %v", got, p)
}
