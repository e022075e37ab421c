// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestInspect checks that Inspect sees what Ensure would make, and makes nothing.
func TestInspect(t *testing.T) {
	s, clock := newStore(t)
	wantMissing(t, s)
	ensure(t, s)
	for i, c := range s.Inspect() {
		life := leafLife
		if i == 0 {
			life = caLife
		}
		if c.Err != nil || c.IsForeign || !c.NotAfter.Equal(clock.Now().Add(life)) || !c.RenewAt.Before(c.NotAfter) {
			t.Errorf("of a new store: %+v", c)
		}
	}

	// Ensure is to renew exactly those that are due by RenewAt.
	before := s.Inspect()
	clock.SetTime(before[1].RenewAt.Add(1))
	if changed := ensure(t, s); len(changed) != len(leavesOnly) {
		t.Errorf("after RenewAt it renews %v", changed)
	}
}

// wantMissing checks an empty store.
func wantMissing(t *testing.T, s *Store) {
	t.Helper()
	for _, c := range s.Inspect() {
		if !errors.Is(c.Err, fs.ErrNotExist) {
			t.Errorf("of an empty store: %+v", c)
		}
	}
	if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it made the folder: %v", err)
	}
}

// TestInspectBroken checks that Inspect sees files that do not fit, and leaves them.
func TestInspectBroken(t *testing.T) {
	s, _ := newStore(t)
	ensure(t, s)
	path := filepath.Join(s.Dir, servingFile)
	other, _ := newStore(t)
	ensure(t, other)
	assert.NoError(t, errors.Join(os.WriteFile(path, read(t, other.Serving()), 0o644), os.Chmod(path, 0o644), os.WriteFile(s.Admin(), []byte("x"), 0o600)))
	found := map[string]Certificate{}
	for _, c := range s.Inspect() {
		found[c.File] = c
	}
	if !found[servingFile].IsForeign || found[servingFile].Err != nil || found[caFile].IsForeign {
		t.Errorf("another authority's: %+v", found[servingFile])
	}
	if !errors.Is(found[adminFile].Err, errDamaged) {
		t.Errorf("a damaged one: %+v", found[adminFile])
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("it changed %v, %v", info, err)
	}
}

func TestParseCertificate(t *testing.T) {
	s, clock := newStore(t)
	ensure(t, s)
	c, err := ParseCertificate(read(t, s.Admin()))
	if err != nil || !c.NotAfter.Equal(clock.Now().Add(leafLife)) {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := ParseCertificate([]byte("none")); err == nil {
		t.Error("a text without one passes")
	}
}
