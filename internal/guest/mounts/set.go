// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package mounts

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// tmpfsOptions bound a folder: two contents, in which each file has separate pages.
const tmpfsOptions = "mode=0755,size=16m,nr_inodes=8k"

const flags = unix.MS_NOSUID | unix.MS_NODEV

// Set has the folders of this machine.
type Set struct {
	// UID and GID own the files.
	UID, GID int
	// FindFolder returns the path without links of a folder, which it makes if it is missing.
	FindFolder func(path string) (string, error)

	mu      sync.Mutex
	folders map[string]*folder // by path
	places  []string           // their paths without links
}

// Mount mounts the folder of a Content and writes its files.
func (s *Set) Mount(c Content) error {
	if err := c.Check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	place, err := s.findPlace(c.Path)
	if err != nil {
		return err
	}
	root, err := mountTmpfs(place)
	if err != nil {
		return err
	}
	if s.folders == nil {
		s.folders = map[string]*folder{}
	}
	s.folders[c.Path] = s.newFolder(root)
	return s.folders[c.Path].write(c)
}

func (s *Set) newFolder(root *os.Root) *folder {
	return &folder{root: root, uid: s.UID, gid: s.GID, looks: make(chan struct{}, 1)}
}

// findPlace returns the path without links of a folder. Links of the image can make two folders one, or one the parent of
// another one, which would hide files.
func (s *Set) findPlace(path string) (string, error) {
	place, err := s.FindFolder(path)
	if err != nil {
		return "", err
	}
	for _, other := range s.places {
		if strings.HasPrefix(place+"/", other+"/") || strings.HasPrefix(other+"/", place+"/") {
			return "", fmt.Errorf("links of the image lead to %s, which is in the same place as %s, another folder of spec.files", place, other)
		}
	}
	s.places = append(s.places, place)
	return place, nil
}

// mountTmpfs mounts a tmpfs on a path. The programs of the image see it read-only by a second mount above
// the one of the root that mountTmpfs returns: they can neither write to that nor unmount it while it is open.
func mountTmpfs(path string) (*os.Root, error) {
	err := unix.Mount("tmpfs", path, "tmpfs", flags, tmpfsOptions+",noswap")
	if errors.Is(err, unix.EINVAL) { // Linux before 6.4
		err = unix.Mount("tmpfs", path, "tmpfs", flags, tmpfsOptions)
	}
	if err != nil {
		return nil, fmt.Errorf("mount it: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	err = unix.Mount(path, path, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, "")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount it read-only: %w", err), root.Close())
	}
	return root, nil
}

// Revisions returns the revisions of all folders by their paths. A folder that programs of the image have hidden or
// unmounted has the revision "", as one without content.
func (s *Set) Revisions() map[string]string {
	revisions := map[string]string{}
	if s == nil {
		return revisions
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, f := range s.folders {
		revisions[path] = f.revision
		if f.checkVisible(path) != nil {
			revisions[path] = ""
		}
	}
	return revisions
}

// Write replaces the files of a folder that Mount has mounted.
func (s *Set) Write(c Content) error {
	if err := c.Check(); err != nil {
		return err
	}
	if s == nil {
		return errMissing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.folders[c.Path]
	if f == nil {
		return errMissing
	}
	if err := f.write(c); err != nil {
		return err
	}
	return f.checkVisible(c.Path)
}

var errMissing = errors.New("this run has no such folder of spec.files: restart the machine")
