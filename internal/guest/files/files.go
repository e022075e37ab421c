// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files moves files between a container image's machine and the computer of a user, as tar
// streams of one file or folder each. Both ends use it: the agent in the guest, and kubectl vm cp.
//
// Start with Pack and Unpack.
package files

import (
	"archive/tar"
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Commands that Drover's program in the guest serves itself, so that the image needs no tar. Each has a
// path of the guest as its argument. No program of an image is hidden: a colon is in no usual name.
const (
	// ReadCommand writes what is at the path to its output, by Pack.
	ReadCommand = "drover:read"
	// WriteCommand makes what comes by its input at the path, by Unpack.
	WriteCommand = "drover:write"
)

// IsCommand reports whether a command is one of these.
func IsCommand(args []string) bool {
	return len(args) > 0 && (args[0] == ReadCommand || args[0] == WriteCommand)
}

// packBuffer is how much is written at a time.
const packBuffer = 32 << 10

// Pack writes a file or folder as a tar stream. All names begin with the last element of the path, also where
// that is a link to what is packed. Links in a folder are packed as links. Sockets, pipes and devices are left out.
func Pack(to io.Writer, from string) error {
	name := filepath.Base(from)
	top, err := filepath.EvalSymlinks(from)
	if err == nil && !filepath.IsLocal(name) {
		err = fmt.Errorf("%q cannot be copied as a whole: name a file or folder in it", from)
	}
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(to, packBuffer)
	archive := tar.NewWriter(buffered)
	err = filepath.WalkDir(top, func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(top, file)
		if err != nil {
			return err
		}
		return addFile(archive, filepath.ToSlash(filepath.Join(name, rest)), file)
	})
	if err != nil {
		return err
	}
	return errors.Join(archive.Close(), buffered.Flush())
}

// addFile adds a file by a name.
func addFile(archive *tar.Writer, name, file string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	target := ""
	switch mode := info.Mode(); {
	case mode.IsRegular() || mode.IsDir():
	case mode.Type() == fs.ModeSymlink:
		if target, err = os.Readlink(file); err != nil {
			return err
		}
	default:
		return nil
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = name
	if err := archive.WriteHeader(header); err != nil || header.Typeflag != tar.TypeReg {
		return err
	}
	f, err := os.Open(file) //nolint:gosec // as asked for
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := io.CopyN(archive, f, header.Size); err != nil {
		return fmt.Errorf("%s has become shorter while it was read: %w", file, err)
	}
	return nil
}

// Destination is where the file or folder of a stream is made.
type Destination struct {
	// Folder is a folder that exists.
	Folder string
	// Name is what the file or folder becomes in it, empty for its name in the stream.
	Name string
	// Own is called for all that was made, links included; nil leaves owner and mode as the process makes them.
	Own func(root *os.Root, name string, mode fs.FileMode) error
	// AnyLinks makes symbolic links wherever they lead. It is for a sender who may write everywhere here anyway.
	AnyLinks bool
}

// DestinationOf returns where something of a name is made that is copied to a place, as cp does: in it if it
// is a folder, which it has to be if a separator ends it, else as it.
func DestinationOf(place, name string) Destination {
	info, err := os.Stat(place)
	if err == nil && info.IsDir() || place == "" || os.IsPathSeparator(place[len(place)-1]) {
		return Destination{Folder: place, Name: name}
	}
	return Destination{Folder: filepath.Dir(place), Name: filepath.Base(place)}
}

// Unpack makes the file or folder of a stream, which may be hostile, and replaces a file of the same name. Nothing is
// made outside of that folder. Symbolic links that lead out of it are left out, and a LinksError names them once
// everything else has been made.
func Unpack(from io.Reader, to Destination) error {
	folder, err := os.OpenRoot(to.Folder)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	archive := tar.NewReader(from)
	first, err := readFirst(archive)
	if err != nil {
		return err
	}
	top := path.Clean(first.Name)
	name := cmp.Or(to.Name, top)
	if err := to.make(folder, name, first, archive); err != nil {
		return err
	}
	var tree *os.Root
	if first.Typeflag == tar.TypeDir {
		if tree, err = folder.OpenRoot(name); err != nil {
			return err
		}
		defer func() { _ = tree.Close() }()
	}
	err = to.makeRest(tree, top, archive)
	if left := (*LinksError)(nil); err != nil && !errors.As(err, &left) {
		return err
	}
	_, padding := io.Copy(io.Discard, from) // behind the archive's end
	return errors.Join(err, padding)
}

// makeRest makes all that follows the first entry of a stream, whose name is top. The folder is nil if that is a file.
func (d Destination) makeRest(folder *os.Root, top string, archive *tar.Reader) error {
	var left LinksError
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return left.err()
		}
		if err != nil {
			return err
		}
		name, isIn := nameIn(top, header.Name)
		if folder == nil || !isIn {
			return fmt.Errorf("the archive has %.200q, which is not in the folder with which it begins, %.200q", header.Name, top)
		}
		if err := checkFolders(folder, name); err != nil {
			return err
		}
		if header.Typeflag == tar.TypeSymlink && !d.AnyLinks {
			if err := checkLink(folder, name, header.Linkname); err != nil {
				left.add(header.Name, header.Linkname, err)
				continue
			}
		}
		if err := d.make(folder, name, header, archive); err != nil {
			return err
		}
	}
}

// readFirst returns the entry with which a stream begins.
func readFirst(archive *tar.Reader) (*tar.Header, error) {
	header, err := archive.Next()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("nothing has come: what is copied has to be a file or folder")
	}
	if err != nil {
		return nil, err
	}
	if header.Typeflag == tar.TypeSymlink {
		return nil, fmt.Errorf("the archive begins with %.200q, a symbolic link to %.200q, want a file or folder", header.Name, header.Linkname)
	}
	if first := path.Clean(header.Name); !filepath.IsLocal(first) || filepath.Base(first) != first || first == "." {
		return nil, fmt.Errorf("the archive begins with %.200q, want the name of a file or folder", header.Name)
	}
	return header, nil
}

// nameIn returns the name of an entry in a folder of the stream.
func nameIn(folder, name string) (rest string, isIn bool) {
	rest, isIn = strings.CutPrefix(path.Clean(name), folder+"/")
	rest = filepath.FromSlash(rest)
	return rest, isIn && filepath.IsLocal(rest)
}

// make makes what an entry describes.
func (d Destination) make(root *os.Root, name string, header *tar.Header, content io.Reader) error {
	mode := header.FileInfo().Mode()
	info, err := root.Lstat(name)
	if err == nil && info.IsDir() && header.Typeflag == tar.TypeDir {
		return nil // it keeps its owner and mode
	}
	if err == nil && !info.IsDir() {
		if err := root.Remove(name); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		err = root.Mkdir(name, mode.Perm()|0o700) // else its files could not be made
	case tar.TypeReg:
		err = writeContent(root, name, mode.Perm(), content)
	case tar.TypeSymlink:
		err = root.Symlink(header.Linkname, name)
	default:
		err = fmt.Errorf("the archive has %.200q, which is neither file, folder nor symbolic link", header.Name)
	}
	if err == nil && d.Own != nil {
		err = d.Own(root, name, mode)
	}
	if err == nil && header.Typeflag == tar.TypeReg {
		err = root.Chtimes(name, header.ModTime, header.ModTime)
	}
	return err
}

func writeContent(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
