// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"io"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestSteppedClock checks that the object whose creation event steps the clock gets the stepped time,
// even if the event arrives seconds later and the object was read before the event. Older objects keep
// their time.
func TestSteppedClock(t *testing.T) {
	const before, created, stepped = "2020-01-01T00:00:00Z", "2020-01-01T00:00:01Z", "2020-01-01T01:00:01Z"
	f := ClockSteps.constructors["ahead"]()
	object := func(uid, at string) event {
		return event{Type: "ADDED", Object: []byte(`{"metadata":{"uid":"` + uid + `","creationTimestamp":"` + at + `"}}`)}
	}
	f.translate(object("new", created))
	read, written := io.Pipe()
	go func() { _, _ = io.Copy(io.Discard, read) }()
	assert.NoError(t, f.occur(&stream{to: written, injector: &injector{fault: f}}, object("new", created)))
	for uid, times := range map[string][2]string{"new": {created, stepped}, "old": {before, before}} {
		assert.Contains(t, uid, string(f.translate(object(uid, times[0])).Object), times[1])
	}
}
