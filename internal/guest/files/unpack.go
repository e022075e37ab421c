// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Destination is where the file or folder of a stream is made.
type Destination struct {
	// Folder is a folder that exists.
	Folder string
	// Name is the name of the file or folder in it, empty for its name in the stream.
	Name string
	// Own is called for all that is new, links included; nil leaves owner and mode as the process makes them.
	Own func(root *os.Root, name string, mode fs.FileMode) error
	// AnyLinks makes symbolic links wherever they lead, and writes through the links that exist, wherever these
	// lead. It is for a sender who may write everywhere here anyway.
	AnyLinks bool
	// Overwritten gets the files that were overwritten, as they could not be replaced; nil forgets them.
	Overwritten *Overwritten
}

// maxLinks is how many symbolic links a name may lead through, as in Linux.
const maxLinks = 40

// DestinationOf returns where something of a name is made that is copied to a place, as scp does: in it if it
// is a folder, which it has to be if a separator ends it, else as it. Symbolic links are followed.
func DestinationOf(place, name string) (Destination, error) {
	info, err := os.Stat(place)
	if err == nil && info.IsDir() || place == "" || os.IsPathSeparator(place[len(place)-1]) {
		if name == "" {
			return Destination{Folder: place}, nil
		}
		place = filepath.Join(place, name)
	}
	place, err = followLinks(place)
	return Destination{Folder: filepath.Dir(place), Name: filepath.Base(place)}, err
}

// followLinks returns the path to which a path leads that may be a symbolic link. Nothing has to be there.
func followLinks(place string) (string, error) {
	for range maxLinks {
		target, err := os.Readlink(place)
		if err != nil { // it is not a link
			return place, nil //nolint:nilerr // Whoever opens it sees the error.
		}
		if !filepath.IsAbs(target) {
			target = filepath.Dir(place) + string(filepath.Separator) + target
		}
		place = target
	}
	return "", &fs.PathError{Op: "open", Path: place, Err: unix.ELOOP}
}

// targetFolder is the folder below which files are made.
type targetFolder struct {
	*os.Root

	path string
}

func openFolder(path string) (*targetFolder, error) {
	root, err := os.OpenRoot(path)
	return &targetFolder{root, path}, err
}

// Unpack makes the file or folder of a stream, which may be hostile. A file of the same name is replaced once its new
// content is there, and keeps its owner, mode and attributes. Nothing is made outside of the destination's folder.
// Symbolic links that lead out of it, and files that would be written through such links, are left out. A
// LeftOutError names them once everything else has been made.
func Unpack(from io.Reader, to Destination) error {
	folder, err := openFolder(to.Folder)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	archive := tar.NewReader(from)
	first, err := readFirst(archive)
	if err != nil {
		return err
	}
	topName := path.Clean(first.Name)
	name := cmp.Or(to.Name, topName)
	if err := to.make(folder, name, first, archive); err != nil {
		return err
	}
	var top *targetFolder
	if first.Typeflag == tar.TypeDir {
		if top, err = openFolder(filepath.Join(to.Folder, name)); err != nil {
			return err
		}
		defer func() { _ = top.Close() }()
	}
	err = to.makeRest(top, topName, archive)
	if left := (*LeftOutError)(nil); err != nil && !errors.As(err, &left) {
		return err
	}
	_, padding := io.Copy(io.Discard, from) // behind the archive's end
	return errors.Join(err, padding)
}

// makeRest makes all that follows the first entry of a stream, whose name is top. The folder is nil if that is a file.
func (d Destination) makeRest(folder *targetFolder, top string, archive *tar.Reader) error {
	var left LeftOutError
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
		if err := d.makeIn(folder, name, header, archive); err != nil {
			leads, isLeftOut := errors.AsType[*leadsOutError](err)
			if !isLeftOut {
				return err
			}
			left.add(header.Name, leads)
		}
	}
}

// makeIn makes what an entry in the folder describes.
func (d Destination) makeIn(folder *targetFolder, name string, header *tar.Header, archive *tar.Reader) error {
	if !d.AnyLinks {
		if err := checkFolders(folder.Root, name); err != nil {
			return err
		}
		if header.Typeflag == tar.TypeSymlink {
			if err := checkLink(folder.Root, name, header.Linkname); err != nil {
				return &leadsOutError{header.Linkname, err}
			}
		}
	}
	return d.make(folder, name, header, archive)
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
func (d Destination) make(in *targetFolder, name string, header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeReg {
		return d.writeThrough(in, name, header, content)
	}
	mode := header.FileInfo().Mode()
	info, err := in.Lstat(name)
	if err == nil && header.Typeflag == tar.TypeDir && d.isFolder(in, name, info) {
		return nil // it keeps its owner and mode
	}
	if err == nil && !info.IsDir() {
		if err := in.Remove(name); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		err = in.Mkdir(name, mode.Perm()|0o700) // else its files could not be made
	case tar.TypeSymlink:
		err = in.Symlink(header.Linkname, name)
	default:
		err = fmt.Errorf("the archive has %.200q, which is neither file, folder nor symbolic link", header.Name)
	}
	if err == nil && d.Own != nil {
		err = d.Own(in.Root, name, mode)
	}
	return err
}

// isFolder reports whether a file is a folder, or a link that may be followed to one.
func (d Destination) isFolder(in *targetFolder, name string, info fs.FileInfo) bool {
	if d.AnyLinks && info.Mode().Type() == fs.ModeSymlink {
		followed, err := os.Stat(filepath.Join(in.path, name))
		return err == nil && followed.IsDir()
	}
	return info.IsDir()
}

// writeThrough writes a regular file, where the name leads.
func (d Destination) writeThrough(in *targetFolder, name string, header *tar.Header, content io.Reader) error {
	if !d.AnyLinks {
		name, err := followInside(in.Root, name)
		if err != nil {
			return err
		}
		return d.writeFile(in.Root, name, header, content)
	}
	place, err := followLinks(filepath.Join(in.path, name))
	if err != nil {
		return err
	}
	folder, err := os.OpenRoot(filepath.Dir(place))
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return d.writeFile(folder, filepath.Base(place), header, content)
}
