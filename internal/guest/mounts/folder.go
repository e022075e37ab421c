// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package mounts

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// Names in a folder, as the kubelet has them. A program that opens a file goes through dataLink, which changes to
// another folder at once.
const (
	dataLink = "..data"
	newLink  = "..data_tmp"
)

// folder is a folder whose files are replaced as a whole, as by the AtomicWriter of the kubelet:
//
//	key -> ..data/key
//	..data -> ..2026_11_30_12_00_00.XXXXXXXX
//	..2026_11_30_12_00_00.XXXXXXXX/key
//
// Nothing leads out of root, whatever links are in it.
type folder struct {
	root     *os.Root
	uid, gid int
	looks    chan struct{} // has an element while a look at the path lasts

	revision string
	// digest is of the files, current has them, and links are the names of the links to them. All are empty before the
	// first write.
	digest  [sha256.Size]byte
	current string
	links   map[string]bool
}

// write replaces the files. After an error they are as before, or all new with old ones beside them.
func (f *folder) write(c Content) error {
	text, err := json.Marshal(c.Files)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(text)
	if target, err := f.root.Readlink(dataLink); err == nil && target == f.current && digest == f.digest {
		f.revision = c.Revision
		return nil
	}
	_ = f.removeOthers()                                                        // what programs of the image have written takes room
	name := time.Now().UTC().Format("..2006_01_02_15_04_05.") + rand.Text()[:8] //nolint:forbidigo // of a name alone
	err = f.writeFiles(name, c.Files)
	if err == nil {
		err = f.switchTo(name)
	}
	if err != nil {
		return errors.Join(err, f.root.RemoveAll(name))
	}
	f.current, f.links = name, linksOf(c.Files)
	if err := f.linkFiles(); err != nil {
		f.digest = [sha256.Size]byte{} // the next write repeats all of it
		return err
	}
	f.digest, f.revision = digest, c.Revision
	return nil
}

// writeFiles writes the files into a new folder.
func (f *folder) writeFiles(name string, files []File) error {
	if err := f.root.Mkdir(name, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		if err := f.writeFile(path.Join(name, file.Path), file); err != nil {
			return fmt.Errorf("write %s: %w", file.Path, err)
		}
	}
	return nil
}

func (f *folder) writeFile(name string, file File) error {
	if err := f.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	out, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(file.Data)
	return errors.Join(err, out.Chown(f.uid, f.gid), out.Chmod(fs.FileMode(file.Mode)), out.Close())
}

// switchTo makes dataLink lead to a folder.
func (f *folder) switchTo(name string) error {
	if err := errors.Join(f.root.RemoveAll(newLink), f.root.Symlink(name, newLink)); err != nil {
		return err
	}
	if f.root.Rename(newLink, dataLink) == nil {
		return nil
	}
	// A program of the image has made a folder in its place.
	return errors.Join(f.root.RemoveAll(dataLink), f.root.Rename(newLink, dataLink))
}

// linkFiles makes a link to each file or folder of the content, and removes all else.
func (f *folder) linkFiles() error {
	for name := range f.links {
		link := dataLink + "/" + name
		if target, err := f.root.Readlink(name); err == nil && target == link {
			continue
		}
		if err := errors.Join(f.root.RemoveAll(name), f.root.Symlink(link, name)); err != nil {
			return err
		}
	}
	return f.removeOthers()
}

// linksOf returns the names of the links to files or folders of a content.
func linksOf(files []File) map[string]bool {
	names := map[string]bool{}
	for _, file := range files {
		name, _, _ := strings.Cut(file.Path, "/")
		names[name] = true
	}
	return names
}

// removeOthers removes all but the current files and the links to them.
func (f *folder) removeOthers() error {
	present, err := fs.ReadDir(f.root.FS(), ".")
	for _, entry := range present {
		if name := entry.Name(); name != dataLink && name != f.current && !f.links[name] {
			err = errors.Join(err, f.root.RemoveAll(name))
		}
	}
	return err
}

// checkVisible returns an error unless programs see the folder at the path. It takes at most lookTimeout, since what hides
// the folder may be a file system that does not answer.
func (f *folder) checkVisible(path string) error {
	select {
	case f.looks <- struct{}{}:
	default:
		return errHidden // the last look has not ended
	}
	answer := make(chan error, 1)
	go func() {
		answer <- f.look(path)
		<-f.looks
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(lookTimeout):
		return errHidden
	}
}

const lookTimeout = time.Second / 2

var errHidden = errors.New("a program of the image has unmounted or hidden the folder: restart the machine")

func (f *folder) look(path string) error {
	ours, err := f.root.Stat(".")
	if err != nil {
		return err
	}
	if theirs, err := stat(path); err != nil || !os.SameFile(ours, theirs) {
		return errHidden
	}
	return nil
}

// stat is os.Stat, which tests replace.
var stat = os.Stat
