// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestDevice checks which devices machines' users may use, and by which group.
func TestDevice(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	users, err := NewUsers(DefaultUser, "")
	assert.NoError(t, err)
	const group = 12345
	for name, c := range map[string]struct {
		mode   os.FileMode
		gid    int
		groups []uint32
		usable bool
	}{
		"root's alone":               {0o600, 0, nil, false},
		"of root's group":            {0o660, 0, nil, false},
		"of a group that may not":    {0o600, group, nil, false},
		"of a group that only reads": {0o640, group, nil, false},
		"of a group":                 {0o660, group, []uint32{group}, true},
		"everyone's":                 {0o666, 0, nil, true},
	} {
		path := filepath.Join(t.TempDir(), "device")
		assert.NoError(t, os.WriteFile(path, nil, 0o600))
		assert.NoError(t, os.Chown(path, 0, c.gid))
		assert.NoError(t, os.Chmod(path, c.mode))
		if got := deviceGroups(path); !slices.Equal(got, c.groups) {
			t.Errorf("%s: got the groups %v, want %v", name, got, c.groups)
		}
		if err := users.CheckDevice(path); (err == nil) != c.usable || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
