// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"archive/tar"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cloudnative.tw/drover/test/assert"
)

// newHome returns a folder to copy to. A file beside the folder is secret, and links in the folder lead to it.
func newHome(t testing.TB) string {
	t.Helper()
	home := t.TempDir()
	to := filepath.Join(home, "own")
	assert.NoError(t, os.Mkdir(to, 0o700))
	assert.NoError(t, os.WriteFile(filepath.Join(home, "secret"), []byte("secret"), 0o600))
	assert.NoError(t, os.Symlink("..", filepath.Join(to, "up")))
	assert.NoError(t, os.Symlink(home, filepath.Join(to, "home")))
	assert.NoError(t, os.Mkdir(filepath.Join(to, "old"), 0o700))
	assert.NoError(t, os.Symlink("../../secret", filepath.Join(to, "old", "s")))
	return to
}

// TestLinks checks which symbolic links of a stream are created, that the error names the other links with the cause, and
// that all other entries of the stream are created.
func TestLinks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers []tar.Header
		says    string
		made    string // names of links
	}{
		"within":                    {[]tar.Header{link("x/l", "f")}, "", "l"},
		"chain of libraries":        {[]tar.Header{link("x/a", "b"), link("x/b", "c.1"), file("x/c.1")}, "", "a b"},
		"up, within":                {[]tar.Header{folder("x/d"), link("x/d/l", "../f"), link("x/d/t", "..")}, "", "d/l d/t"},
		"to the folder itself":      {[]tar.Header{link("x/l", ".")}, "", "l"},
		"to itself":                 {[]tar.Header{link("x/l", "l")}, "", "l"},
		"absolute":                  {[]tar.Header{link("x/l", "/etc/passwd")}, `"x/l": the link to "/etc/passwd": the target is absolute`, ""},
		"above":                     {[]tar.Header{link("x/l", "../secret")}, `"x/l": the link to "../secret": the target is above`, ""},
		"above, from a folder":      {[]tar.Header{folder("x/d"), link("x/d/l", "../../secret")}, "above", ""},
		"above, after a name":       {[]tar.Header{folder("x/d"), link("x/l", "d/../../secret")}, `".." after a name`, ""},
		"above, by an earlier link": {[]tar.Header{link("x/a", "."), link("x/l", "a/../secret")}, `".." after a name`, "a"},
		"above, by a later link":    {[]tar.Header{link("x/l", "a/../secret"), link("x/a", ".")}, `".." after a name`, "a"},
		"by a link of the user":     {[]tar.Header{link("x/l", "up/secret")}, "escapes", ""},
		"by another of the user":    {[]tar.Header{link("x/l", "home/secret")}, "escapes", ""},
		"through the user's links":  {[]tar.Header{file("x/home"), file("x/old/s")}, `"x/home": the link to "`, ""},
		"to a link of the user":     {[]tar.Header{link("x/l", "old/s")}, "escapes", ""},
		"by a chain to the user's":  {[]tar.Header{link("x/a", "up"), link("x/b", "a"), link("x/l", "b/secret")}, `"x/a": the link to "up"`, "b l"}, // a is missing
		"escape sequences":          {[]tar.Header{link("x/\x1b[2J", "/\x1b]0;t\a")}, `"x/\x1b[2J": the link to "/\x1b]0;t\a"`, ""},
		"many":                      {[]tar.Header{link("x/1", "/"), link("x/2", "/"), link("x/3", "/"), link("x/4", "/"), link("x/5", "/")}, "5 files were left out: ", ""},
		"many, and how many more":   {[]tar.Header{link("x/1", "/"), link("x/2", "/"), link("x/3", "/"), link("x/4", "/"), link("x/5", "/")}, "; and 2 more", ""},
	} {
		to := newHome(t)
		headers := slices.Concat([]tar.Header{folder("x")}, c.headers, []tar.Header{file("x/last")})
		err := Unpack(streamOf(t, headers...), Destination{Folder: filepath.Dir(to), Name: "own"})
		if c.says == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorSays(t, name, err, c.says)
		}
		assert.ErrorIs(t, name+": what comes after it", assert.ErrorOf(os.Stat(filepath.Join(to, "last"))), nil)
		assert.Equal(t, name+": it makes the links", strings.Join(linksOf(t, to), " "), c.made)
	}
}

// TestNamesByLinks checks that nothing is created through a link, whether the stream or the user has created the link.
func TestNamesByLinks(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]tar.Header{
		"a link of the stream":  {folder("x"), folder("x/d"), link("x/l", "d"), file("x/l/f")},
		"a link by another":     {folder("x"), folder("x/d"), link("x/l", "d"), link("x/l/f", "../..")},
		"a link of the user":    {folder("x"), file("x/up/f")},
		"below it":              {folder("x"), folder("x/home/own/old/f")},
		"a link in place of it": {folder("x"), folder("x/d"), link("x/d/l", "."), folder("x/d/l/e")},
	} {
		to := newHome(t)
		assert.ErrorSays(t, name, Unpack(streamOf(t, headers...), Destination{Folder: filepath.Dir(to), Name: "own"}), "is a symbolic link")
	}
}

// TestNoLinkLeadsOut copies random streams to one folder, one after another, and then writes to every link that they have
// created. Nothing beside the folder may change.
func TestNoLinkLeadsOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		to := newHome(t)
		for _, headers := range rapid.SliceOfN(streams, 1, 3).Draw(r, "streams") {
			_ = Unpack(streamOf(t, append([]tar.Header{folder("x")}, headers...)...), Destination{Folder: filepath.Dir(to), Name: "own"})
		}
		for _, name := range linksOf(t, to) {
			_ = os.WriteFile(filepath.Join(to, name), []byte("changed"), 0o600)
			if leadsTo, err := filepath.EvalSymlinks(filepath.Join(to, name)); err == nil && leadsTo != to && !strings.HasPrefix(leadsTo, to+"/") {
				r.Errorf("%s leads to %s", name, leadsTo)
			}
		}
		all, err := os.ReadDir(filepath.Dir(to))
		secret, readErr := os.ReadFile(filepath.Join(filepath.Dir(to), "secret"))
		if err != nil || len(all) != 2 || readErr != nil || string(secret) != "secret" {
			r.Errorf("beside the folder are %v, %v, and the secret is %q, %v", all, err, secret, readErr)
		}
	})
}

// streams draws the entries of a stream.
var streams = rapid.SliceOfN(rapid.Custom(func(r *rapid.T) tar.Header {
	name := "x/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "old", "up"}), 1, 3).Draw(r, "name"), "/")
	if rapid.Bool().Draw(r, "is a link") {
		elements := rapid.SliceOfN(rapid.SampledFrom([]string{"..", "..", ".", "", "a", "b", "c", "old", "up", "home", "s", "new"}), 1, 5)
		return link(name, strings.Join(elements.Draw(r, "target"), "/"))
	}
	return rapid.SampledFrom([]tar.Header{folder(name), file(name)}).Draw(r, "entry")
}), 0, 8)

// linksOf returns the symbolic links in a folder, except those of newHome.
func linksOf(t testing.TB, to string) (links []string) {
	t.Helper()
	own := map[string]string{"up": "..", "home": filepath.Dir(to), "old/s": "../../secret"}
	assert.NoError(t, filepath.WalkDir(to, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type() != fs.ModeSymlink {
			return err
		}
		target, err := os.Readlink(file)
		if name := strings.TrimPrefix(file, to+"/"); own[name] != target {
			links = append(links, name)
		}
		return err
	}))
	return links
}
