// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
)

// TestSurvey checks that each engine is identified by its id, that one which does not answer
// hides no other, and that none is made.
func TestSurvey(t *testing.T) {
	t.Parallel()
	dir, other, gone := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "gone")
	ids := map[string]string{}
	for _, path := range []string{dir, other} {
		d, err := fake.New(fake.Options{ClusterID: "cluster-1", Dir: path})
		assert.NoError(t, err)
		if ids[path], err = d.EngineID(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = d.Ensure(t.Context(), driver.ServerSpec{
			Target: driver.Target{UID: uuid.NewUUID(), Epoch: 1}, Namespace: "default", Name: "vm", Power: driver.PowerOn,
			RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 1 << 20,
		})
		assert.NoError(t, err)
	}
	known := []Engine{
		{Driver: "fake", Dir: dir}, // as an older version recorded it
		{Driver: "fake", Dir: dir, ID: ids[dir]},
		{Driver: "fake", Dir: other, ID: "another"},
		{Driver: "fake", Dir: gone, ID: "gone"},
	}
	file := filepath.Join(t.TempDir(), "engines.json")
	content, err := json.Marshal(known)
	assert.NoError(t, errors.Join(err, os.WriteFile(file, content, 0o600)))
	all, err := Survey(t.Context(), file, driver.Environment{ClusterID: "cluster-1", Clock: clock.RealClock{}, Log: logr.Discard()})
	assert.NoError(t, err)
	var got []string
	for _, s := range all {
		got = append(got, fmt.Sprintf("%s %d servers, another %t, gone %t", s.ID, len(s.Servers), errors.Is(s.Err, ErrAnotherEngine), s.IsGone()))
	}
	want := []string{ids[dir] + " 1 servers, another false, gone false", "another 0 servers, another true, gone false", "gone 0 servers, another false, gone true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder was made: %v", err)
	}
}

// TestSurveyOfNothing checks that an installation that has used no engine has no servers, and
// that a damaged record is an error.
func TestSurveyOfNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "engines.json")
	if all, err := Survey(t.Context(), file, driver.Environment{}); len(all) != 0 || err != nil {
		t.Errorf("got %+v, %v", all, err)
	}
	assert.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	if _, err := Survey(t.Context(), file, driver.Environment{}); err == nil {
		t.Error("a damaged record passes for none")
	}
}
