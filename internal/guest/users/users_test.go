// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

//nolint:gosec // a file of users
const passwd = `root:x:0:0:root:/root:/bin/sh
# a comment
broken
app:x:1000:1001:App:/home/app:/bin/sh
nohome:x:1002:1002:::
123:x:1003:1003::/home/number:
far:x:4294967295:1::/:
`

const group = `root:x:0:
app:x:1001:
staff:x:50:app,other
audio:x:29:other,app
again:x:29:app
77:x:1077:
docker:x:999:root
`

// TestLookup checks each form of a user, as container engines understand it.
func TestLookup(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]User{
		"":           {UID: 0, GID: 0, Groups: []uint32{0, 999}, Name: "root", Home: "/root"},
		"root":       {UID: 0, GID: 0, Groups: []uint32{0, 999}, Name: "root", Home: "/root"},
		"0":          {UID: 0, GID: 0, Groups: []uint32{0, 999}, Name: "root", Home: "/root"},
		"app":        {UID: 1000, GID: 1001, Groups: []uint32{1001, 29, 50}, Name: "app", Home: "/home/app"},
		"1000":       {UID: 1000, GID: 1001, Groups: []uint32{1001, 29, 50}, Name: "app", Home: "/home/app"},
		"app:":       {UID: 1000, GID: 1001, Groups: []uint32{1001, 29, 50}, Name: "app", Home: "/home/app"},
		"app:audio":  {UID: 1000, GID: 29, Groups: []uint32{29}, Name: "app", Home: "/home/app"},
		"app:50":     {UID: 1000, GID: 50, Groups: []uint32{50}, Name: "app", Home: "/home/app"},
		"1000:audio": {UID: 1000, GID: 29, Groups: []uint32{29}, Name: "app", Home: "/home/app"},
		"1000:5":     {UID: 1000, GID: 5, Groups: []uint32{5}, Name: "app", Home: "/home/app"},
		"app:77":     {UID: 1000, GID: 77, Groups: []uint32{77}, Name: "app", Home: "/home/app"},
		"2000":       {UID: 2000, GID: 0, Groups: []uint32{0}, Home: "/"},
		"2000:2001":  {UID: 2000, GID: 2001, Groups: []uint32{2001}, Home: "/"},
		"123":        {UID: 123, GID: 0, Groups: []uint32{0}, Home: "/"},
		"nohome":     {UID: 1002, GID: 1002, Groups: []uint32{1002}, Name: "nohome", Home: "/"},
		":50":        {UID: 0, GID: 50, Groups: []uint32{50}, Name: "root", Home: "/root"},
	} {
		got, err := Lookup(text, []byte(passwd), []byte(group))
		assert.NoError(t, err)
		assert.True(t, reflect.DeepEqual(got, want), "%q is %+v, want %+v", text, got, want)
	}
}

// TestNobody checks that a user that cannot be is refused by name.
func TestNobody(t *testing.T) {
	t.Parallel()
	for text, message := range map[string]string{
		"nobody":         `user is "nobody"`,
		"app:wheel":      `the group "wheel"`,
		"-1":             "user is -1",
		"app:-1":         "group is -1",
		"2147483648":     "want 0 to 2147483647",
		"far":            `user is "far"`,
		"app:staff:more": `the group "staff:more"`,
	} {
		assert.ErrorSays(t, text, assert.ErrorOf(Lookup(text, []byte(passwd), []byte(group))), message)
	}
	got, err := Lookup("", nil, nil)
	assert.NoError(t, err)
	want := (User{Groups: []uint32{0}, Home: "/"})
	assert.True(t, reflect.DeepEqual(got, want), "root of an image without /etc is %+v, want %+v", got, want)
}

// FuzzLookup checks that whatever an image has there is read, and never gives a user of no number.
func FuzzLookup(f *testing.F) {
	f.Add("app:staff", passwd, group)
	f.Add("", "a:::\n", strings.Repeat(":", 9))
	f.Fuzz(func(t *testing.T, text, passwd, group string) {
		u, err := Lookup(text, []byte(passwd), []byte(group))
		if err != nil {
			return
		}
		assert.True(t, u.UID <= math.MaxInt32 && u.GID <= math.MaxInt32 && len(u.Groups) != 0 && u.Groups[0] == u.GID && u.Home != "", "%q is %+v", text, u)
	})
}
