// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// tree returns what is in a folder: names, modes, and contents or targets.
func tree(t *testing.T, folder string) string {
	t.Helper()
	var all strings.Builder
	assert.NoError(t, filepath.WalkDir(folder, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || file == folder {
			return err
		}
		info, err := entry.Info()
		assert.NoError(t, err)
		content := ""
		switch mode := info.Mode(); {
		case mode.IsRegular():
			text, err := os.ReadFile(file) //nolint:gosec // nobody else has the folder
			assert.NoError(t, err)
			content = string(text)
		case mode.Type() == fs.ModeSymlink:
			content, err = os.Readlink(file)
		}
		name, _ := filepath.Rel(folder, file)
		all.WriteString(strings.TrimSpace(strings.Join([]string{info.Mode().String(), name, content}, " ")) + "\n")
		return err
	}))
	return all.String()
}

// TestCopies checks the content of a copy, and its path.
func TestCopies(t *testing.T) {
	t.Parallel()
	from := filepath.Join(t.TempDir(), "from")
	assert.NoError(t, os.MkdirAll(filepath.Join(from, "a", "empty"), 0o750))
	assert.NoError(t, os.WriteFile(filepath.Join(from, "a", "run"), []byte("run"), 0o700))
	assert.NoError(t, os.WriteFile(filepath.Join(from, "read"), []byte("read"), 0o400))
	assert.NoError(t, os.Symlink("/etc/passwd", filepath.Join(from, "link")))
	assert.NoError(t, os.Symlink("a", filepath.Join(from, "folder")))
	assert.NoError(t, unix.Mkfifo(filepath.Join(from, "pipe"), 0o600))
	assert.NoError(t, os.Chmod(from, 0o500))
	t.Cleanup(func() { _ = os.Chmod(from, 0o700) })
	inside := func(name string) string {
		return strings.ReplaceAll("drwx------ N\ndrwxr-x--- N/a\ndrwxr-x--- N/a/empty\n-rwx------ N/a/run run\nLrwxrwxrwx N/folder a\nLrwxrwxrwx N/link /etc/passwd\n-r-------- N/read read\n", "N", name)
	}
	for name, c := range map[string]struct{ from, to, want string }{
		"a folder into a folder": {from, ".", inside("from")},
		"a folder as a new one":  {from + "/", "new", inside("new")},
		"a file into a folder":   {from + "/read", "./", "-r-------- read read\n"},
		"a file as a new one":    {from + "/read", "new", "-r-------- new read\n"},
		"what a link leads to":   {from + "/folder/run", "new", "-rwx------ new run\n"},
		"a folder by its link":   {from + "/folder", "new", "drwxr-x--- new\ndrwxr-x--- new/empty\n-rwx------ new/run run\n"},
	} {
		to := t.TempDir()
		for range 2 {
			var stream bytes.Buffer
			assert.NoError(t, Pack(&stream, c.from))
			place, err := DestinationOf(to+"/"+c.to, filepath.Base(c.from))
			assert.NoError(t, err)
			place.AllowAnyLinks = true
			assert.NoError(t, Unpack(&stream, place))
			if c.to == "new" {
				break // else it replaces what it has made
			}
		}
		got := tree(t, to)
		assert.True(t, got == c.want, "%s gives\n%s\nwant\n%s", name, got, c.want)
	}
	for says, c := range map[string]struct{ from, to string }{
		"no such file":           {from + "/none", "."},
		"cannot be copied as a ": {"/", "."},
		"neither file nor":       {from + "/pipe", "."},
		"no such file or":        {from, "none/"},
	} {
		var stream bytes.Buffer
		err := Pack(&stream, c.from)
		if err == nil {
			var place Destination
			place, err = DestinationOf(t.TempDir()+"/"+c.to, "x")
			err = errors.Join(err, Unpack(&stream, place))
		}
		assert.ErrorSays(t, says, err, strings.ReplaceAll(says, "neither file nor", "has to be a file or folder"))
	}
}

// Entries of streams.
func folder(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

func file(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o6777}
}

func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
}

func streamOf(t testing.TB, headers ...tar.Header) io.Reader {
	t.Helper()
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, header := range headers {
		assert.NoError(t, w.WriteHeader(&header))
	}
	assert.NoError(t, w.Close())
	return &stream
}

// TestHostileStreams checks that a stream creates only the one file or folder that was requested.
func TestHostileStreams(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		headers    []tar.Header
		says, made string
	}{
		"parent":              {[]tar.Header{file("../x")}, "begins with", ""},
		"path":                {[]tar.Header{file("a/x")}, "begins with", ""},
		"absolute":            {[]tar.Header{file("/x")}, "begins with", ""},
		"the folder itself":   {[]tar.Header{folder("."), file(".profile")}, "begins with", ""},
		"no name":             {[]tar.Header{file("")}, "begins with", ""},
		"a second file":       {[]tar.Header{file("x"), file(".profile")}, "outside its top-level folder", "-rwxr-xr-x own\n"},
		"beside the folder":   {[]tar.Header{folder("x"), file("x/../.profile")}, "outside its top-level folder", "drwxr-xr-x own\n"},
		"a link as the top":   {[]tar.Header{link("x", "old"), file("x/f")}, `begins with "x", a symbolic link to "old"`, ""},
		"a link for a folder": {[]tar.Header{folder("x"), folder("x/d"), link("x/d", ".")}, "file exists", "drwxr-xr-x own\ndrwxr-xr-x own/d\n"},
		"a hard link":         {[]tar.Header{{Name: "x", Typeflag: tar.TypeLink, Linkname: "old/f"}}, "neither", ""},
		"a hard link inside":  {[]tar.Header{folder("x"), {Name: "x/l", Typeflag: tar.TypeLink, Linkname: "../old/f"}}, `"x/l", which is neither`, "drwxr-xr-x own\n"},
		"a device":            {[]tar.Header{{Name: "x", Typeflag: tar.TypeChar}}, "neither", ""},
		"nothing":             {nil, "the archive is empty", ""},
	} {
		to := t.TempDir()
		assert.NoError(t, os.Mkdir(filepath.Join(to, "old"), 0o755))
		err := Unpack(streamOf(t, c.headers...), Destination{Folder: to, Name: "own"})
		assert.ErrorSays(t, name, err, c.says)
		got, want := tree(t, to), "drwxr-xr-x old\n"+c.made
		assert.True(t, got == want, "%s makes\n%s\nwant\n%s", name, got, want)
	}
}
