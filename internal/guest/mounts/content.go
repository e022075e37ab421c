// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mounts has the folders of a container image's machine whose files the host replaces: the Secrets and
// ConfigMaps of spec.files. They are in the guest's memory.
//
// Start with Content, which the host encodes. Set (set.go) mounts and writes the folders in the guest.
package mounts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// Command is a command that Drover's program in the guest serves itself. Without an input it prints the revisions
// of the folders as a JSON object. Its input is the JSON of a Content, whose folder it replaces.
const Command = "drover:mounts"

// Limits of a Content, and of its JSON.
const (
	MaxBytes = 1 << 20
	MaxFiles = 1024
	MaxJSON  = 4 << 20
	// maxMounts bounds the folders of a machine.
	maxMounts = 16
)

// sector is the unit of a disk's size, in bytes.
const sector = 512

// Content is a folder with all of its files.
type Content struct {
	Path     string `json:"path"`
	Revision string `json:"revision"`
	Files    []File `json:"files"`
}

// File is a file of a folder. Its Path is relative, and its Mode has permissions alone.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// Encode returns the disk that Decode reads.
func Encode(all []Content) ([]byte, error) {
	var disk bytes.Buffer
	encoder := json.NewEncoder(&disk)
	for _, c := range all {
		if err := c.Check(); err != nil {
			return nil, err
		}
		if err := encoder.Encode(c); err != nil {
			return nil, err
		}
	}
	if rest := disk.Len() % sector; rest > 0 || disk.Len() == 0 {
		disk.WriteString(strings.Repeat(" ", sector-rest))
	}
	return disk.Bytes(), nil
}

// errJSON does not quote the text, which may be from a Secret.
var errJSON = errors.New("the content of a folder is not the JSON of a Content")

// Decode calls use for each Content of a disk.
func Decode(disk io.Reader, use func(Content) error) error {
	decoder := json.NewDecoder(io.LimitReader(disk, maxMounts*MaxJSON))
	for {
		var c Content
		err := decoder.Decode(&c)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return errJSON
		}
		if err := use(c); err != nil {
			return fmt.Errorf("%s: %w", c.Path, err)
		}
	}
}

// Parse reads the JSON of a Content.
func Parse(r io.Reader) (c Content, err error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxJSON+1))
	switch {
	case err != nil:
		return c, err
	case len(text) > MaxJSON:
		return c, fmt.Errorf("the content of a folder has more than %d bytes", MaxJSON)
	case json.Unmarshal(text, &c) != nil:
		return c, errJSON
	}
	return c, c.Check()
}

// Check refuses a content that no folder may have.
func (c Content) Check() error {
	size := 0
	if !filepath.IsAbs(c.Path) || c.Path == "/" {
		return fmt.Errorf("the folder is %.80q, want an absolute path other than /", c.Path)
	}
	for _, f := range c.Files {
		if !filepath.IsLocal(f.Path) || filepath.Clean(f.Path) != f.Path || f.Path == "." || strings.HasPrefix(f.Path, "..") {
			return fmt.Errorf("%s: the path %.80q of a file is not a relative one inside of the folder, or begins with two dots", c.Path, f.Path)
		}
		if f.Mode > 0o777 {
			return fmt.Errorf("%s: the mode of %s is %o, want 0 to 777", c.Path, f.Path, f.Mode)
		}
		size += len(f.Data)
	}
	if size > MaxBytes || len(c.Files) > MaxFiles {
		return fmt.Errorf("%s has %d bytes in %d files, at most %d bytes in %d files are allowed", c.Path, size, len(c.Files), MaxBytes, MaxFiles)
	}
	return nil
}
