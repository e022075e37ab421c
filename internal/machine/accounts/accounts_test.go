// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package accounts

import (
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestFind finds users and groups that every Linux has, and none that it cannot have.
func TestFind(t *testing.T) {
	t.Parallel()
	root := User{Name: "root"}
	for _, find := range []func() (User, error){
		func() (User, error) { return FindUser("root") }, func() (User, error) { return FindUserByID(0) },
	} {
		got, err := find()
		assert.NoError(t, err)
		assert.Equal(t, "root", got, root)
	}
	for _, find := range []func() (Group, error){
		func() (Group, error) { return FindGroup("root") }, func() (Group, error) { return FindGroupByID(0) },
	} {
		got, err := find()
		assert.NoError(t, err)
		assert.Equal(t, "group root", got, Group{Name: "root"})
	}
	groups, err := GroupsOf(root)
	assert.NoError(t, err)
	assert.True(t, len(groups) > 0 && groups[0] == 0, "the groups of root are %v", groups)

	for _, name := range []string{"", "0", "no-such-user", "--help", "-s", "root:x"} {
		_, err := FindUser(name)
		assert.ErrorIs(t, "user "+name, err, ErrUnknown)
		_, err = FindGroup(name)
		assert.ErrorIs(t, "group "+name, err, ErrUnknown)
	}
	_, err = FindUserByID(4294967294)
	assert.ErrorIs(t, "an ID without a user", err, ErrUnknown)
	assert.True(t, assert.ErrorOf(GroupsOf(User{Name: "no-such-user"})) != nil, "a user who does not exist has groups")
}

// TestOddAnswers checks that wrong output of getent is an error.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"missing": "", "nothing": "#!/bin/sh\n", "too few fields": "#!/bin/sh\necho root:x:0\n", "no number": "#!/bin/sh\necho root:x:zero:0\n",
		"failure": "#!/bin/sh\nexit 3\n", "a large number": "#!/bin/sh\necho root:x:4294967296:0\n",
	} {
		path := filepath.Join(dir, "getent")
		_ = os.Remove(path)
		if script != "" {
			assert.NoError(t, os.WriteFile(path, []byte(script), 0o700))
		}
		got, err := programs{getent: path}.findUser("root")
		assert.True(t, err != nil, "%s: %+v", name, got)
	}
}
