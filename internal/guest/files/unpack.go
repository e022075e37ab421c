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

// Destination describes where Unpack creates the file or folder that a stream contains.
type Destination struct {
	// Folder is a folder that exists.
	Folder string
	// Name is the name of the new file or folder in Folder. If empty, the name from the stream is used.
	Name string
	// SetOwner is called for every new file, folder and link, to set its owner and mode. If nil, these are the process's
	// defaults.
	SetOwner func(root *os.Root, name string, mode fs.FileMode) error
	// AllowAnyLinks permits creating links to any target and following existing links out of Folder. Set it only if the
	// sender may write to the whole file system anyway.
	AllowAnyLinks bool
	// Overwritten collects the files that were overwritten in place because they could not be replaced. It may be nil.
	Overwritten *Overwritten
}

// maxLinks is how many symbolic links are followed to resolve a name, as in Linux.
const maxLinks = 40

// DestinationOf returns where a file or folder called name ends up when it is copied to target, as with scp: inside
// target if that is a folder or ends with a separator, otherwise at target itself. Symbolic links are followed.
func DestinationOf(target, name string) (Destination, error) {
	info, err := os.Stat(target)
	if err == nil && info.IsDir() || target == "" || os.IsPathSeparator(target[len(target)-1]) {
		if name == "" {
			return Destination{Folder: target}, nil
		}
		target = filepath.Join(target, name)
	}
	target, err = followLinks(target)
	return Destination{Folder: filepath.Dir(target), Name: filepath.Base(target)}, err
}

// followLinks resolves file if it is a symbolic link. The target need not exist.
func followLinks(file string) (string, error) {
	for range maxLinks {
		target, err := os.Readlink(file)
		if err != nil { // it is not a link
			return file, nil //nolint:nilerr // Whoever opens it sees the error.
		}
		if !filepath.IsAbs(target) {
			target = filepath.Dir(file) + string(filepath.Separator) + target
		}
		file = target
	}
	return "", &fs.PathError{Op: "open", Path: file, Err: unix.ELOOP}
}

// targetFolder is the folder in which files are created.
type targetFolder struct {
	*os.Root

	path string
}

func openFolder(path string) (*targetFolder, error) {
	root, err := os.OpenRoot(path)
	return &targetFolder{root, path}, err
}

// Unpack creates the file or folder that a stream contains. The sender of the stream is not trusted. An existing file is
// replaced once the new content is complete, and keeps its owner, mode and attributes. Nothing is created outside of the
// destination's folder. Symbolic links that lead out of the folder, and files that would be written through such links,
// are left out. A LeftOutError names them once everything else has been created.
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
	_, drainErr := io.Copy(io.Discard, from) // the padding after the end of the archive
	return errors.Join(err, drainErr)
}

// makeRest creates the entries after the first. top is the name of the first entry, and folder is nil if that is a file.
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
			return fmt.Errorf("the archive's entry %.200q is outside its top-level folder %.200q", header.Name, top)
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

// makeIn creates an entry in folder. It rejects links that lead out of the folder, unless these are allowed.
func (d Destination) makeIn(folder *targetFolder, name string, header *tar.Header, archive *tar.Reader) error {
	if !d.AllowAnyLinks {
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

// readFirst returns the first entry of a stream.
func readFirst(archive *tar.Reader) (*tar.Header, error) {
	header, err := archive.Next()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the archive is empty: the source has to be a file or folder")
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

// nameIn returns the name of an entry relative to folder, and whether the entry is in the folder.
func nameIn(folder, name string) (rest string, isIn bool) {
	rest, isIn = strings.CutPrefix(path.Clean(name), folder+"/")
	rest = filepath.FromSlash(rest)
	return rest, isIn && filepath.IsLocal(rest)
}

// make creates an entry of the stream.
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
	if err == nil && d.SetOwner != nil {
		err = d.SetOwner(in.Root, name, mode)
	}
	return err
}

// isFolder reports whether a file is a folder, or a link to a folder that may be followed.
func (d Destination) isFolder(in *targetFolder, name string, info fs.FileInfo) bool {
	if d.AllowAnyLinks && info.Mode().Type() == fs.ModeSymlink {
		followed, err := os.Stat(filepath.Join(in.path, name))
		return err == nil && followed.IsDir()
	}
	return info.IsDir()
}

// writeThrough writes a regular file. It follows symbolic links.
func (d Destination) writeThrough(in *targetFolder, name string, header *tar.Header, content io.Reader) error {
	if !d.AllowAnyLinks {
		name, err := followInside(in.Root, name)
		if err != nil {
			return err
		}
		return d.writeFile(in.Root, name, header, content)
	}
	file, err := followLinks(filepath.Join(in.path, name))
	if err != nil {
		return err
	}
	folder, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return d.writeFile(folder, filepath.Base(file), header, content)
}
