// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/login"
)

// dialWithin bounds the question whether another process serves the socket.
const dialWithin = 2 * time.Second

// openSocket opens the socket for group drover, and writes the kubeconfig that leads to it.
func (s *Server) openSocket(ctx context.Context) (*net.UnixListener, error) {
	group, err := s.Directory.FindGroup(login.Group)
	if err != nil {
		return nil, err
	}
	if err := prepareFolder(s.Dir); err != nil {
		return nil, err
	}
	path := login.SocketPath(s.Dir)
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Without the right to change owners, the kernel allows a group that this process is in.
	if err := errors.Join(os.Chown(path, -1, int(group.ID)), os.Chmod(path, 0o660), s.writeKubeconfig()); err != nil { //nolint:gosec // for the group
		return nil, errors.Join(err, s.closeListener(listener))
	}
	return listener, nil
}

// prepareFolder creates the folder. Only root may be able to write there, since clients trust its files.
func prepareFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // all users read it
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	const writable = 0o022
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&writable != 0 {
		return fmt.Errorf("--login-dir is %s: it must be a folder that only user %d may write to", dir, os.Geteuid())
	}
	return os.Chmod(dir, 0o755) //nolint:gosec // all users read it
}

// removeStale removes the socket of a process that was killed.
func removeStale(ctx context.Context, path string) error {
	conn, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("--login-dir: another drover up serves %s", path), conn.Close())
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s *Server) writeKubeconfig() error {
	authority, err := os.ReadFile(s.CABundle)
	if err != nil {
		return err
	}
	content, err := login.FormatKubeconfig(s.Dir, s.URL, authority, s.Command)
	if err != nil {
		return err
	}
	return atomicfile.Update(login.KubeconfigPath(s.Dir), content, 0o644)
}

// closeListener ends the service, and removes the kubeconfig by which clients find it.
func (s *Server) closeListener(listener *net.UnixListener) error {
	if listener == nil {
		return nil
	}
	err := os.Remove(login.KubeconfigPath(s.Dir))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, listener.Close())
}
