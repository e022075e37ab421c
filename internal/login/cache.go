// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"bytes"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	cacheDir  = "drover"
	cacheFile = "login.pem"
	maxCache  = 64 << 10
)

var errNotPrivate = errors.New("another user may use it")

// readCache returns the credentials in the cache, or nil if it is empty or its folder is not private.
func (c *Client) readCache() *Credentials {
	dir, err := c.openCache()
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	f, err := dir.OpenFile(cacheFile, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || !isPrivate(info) {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCache))
	if err != nil {
		return nil
	}
	certificate, rest := pem.Decode(text)
	if certificate == nil || certificate.Type != certificateType {
		return nil
	}
	credentials, err := parseCredentials(pem.EncodeToMemory(certificate), rest)
	if err != nil {
		return nil
	}
	return credentials
}

// writeCache stores credentials in one file. An error only means that the next command logs in again.
func (c *Client) writeCache(made *Credentials) {
	dir, err := c.openCache()
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	temp := cacheFile + "." + rand.Text()
	err = dir.WriteFile(temp, bytes.Join([][]byte{made.certificate, made.key}, nil), 0o600)
	if err == nil {
		err = dir.Rename(temp, cacheFile)
	}
	if err != nil {
		_ = dir.Remove(temp)
	}
}

// openCache opens the folder of the cache, which only this user may be able to use. After su, the variable names the
// folder of another user.
func (c *Client) openCache() (*os.Root, error) {
	if !filepath.IsAbs(c.RuntimeDir) {
		return nil, fs.ErrNotExist
	}
	above, err := openPrivate(os.OpenRoot(c.RuntimeDir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = above.Close() }()
	if err := above.Mkdir(cacheDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return openPrivate(above.OpenRoot(cacheDir))
}

// openPrivate closes a folder that was just opened, unless it is private.
func openPrivate(dir *os.Root, err error) (*os.Root, error) {
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat(".")
	if err == nil && !isPrivate(info) {
		err = errNotPrivate
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// isPrivate reports whether a file is this user's and closed to all others.
func isPrivate(info fs.FileInfo) bool { return isOwned(info, os.Geteuid(), 0o077) }
