// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestReservations checks that what was promised to others, including those that are
// being started, is not promised again.
func TestReservations(t *testing.T) {
	t.Parallel()
	var r Reservations
	running := map[string]int64{}
	var silence error
	look := func() (Room, error) {
		return Room{Available: 16, Where: "on the host", Promised: maps.Clone(running)}, silence
	}
	take := func(id string, needed int64) (func(), error) { return r.Take(id, Demand{Guest: needed}, look) }
	_, err := take("huge", 17)
	wantShortage(t, err, "needed 17 bytes", "available 16 on the host, of which 0 are promised")
	first, err := take("a", 8)
	assert.NoError(t, err)
	second, err := take("b", 8)
	assert.NoError(t, err)
	_, err = take("c", 8)
	wantShortage(t, err, "needed 8 bytes", "available 16 on the host, of which 16 are promised")

	running["a"] = 6 // it has begun to use it
	first()
	second()
	third, err := take("c", 10)
	assert.NoError(t, err)
	_, err = take("d", 1)
	wantShortage(t, err, "of which 16 are promised")
	third()
	silence = errors.New("it does not report its size")
	assert.ErrorIs(t, "a host that does not report its size", assert.ErrorOf(take("huge", 17)), nil)
}

func wantShortage(t *testing.T, err error, says ...string) {
	t.Helper()
	_, ok := errors.AsType[*ShortageError](err)
	assert.Require(t, ok, "got the error %v, want a shortage", err)
	for _, text := range says {
		assert.True(t, strings.Contains(err.Error(), text), "got the error %q, want %q in it", err, text)
	}
}
