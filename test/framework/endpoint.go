// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// listening is the state of a socket that takes connections, in /proc/net/tcp.
const listening = 10

// Get is GetFrom for the process.
func (p *Process) Get(ctx context.Context, path string) ([]byte, error) {
	return GetFrom(ctx, p.PID(), path)
}

// GetFrom requests a path from a process by HTTP, at whichever of its addresses has it: tests let
// programs choose their ports.
func GetFrom(ctx context.Context, pid int, path string) ([]byte, error) {
	addresses, err := listenAddresses(pid)
	if err != nil {
		return nil, err
	}
	errs := []error{fmt.Errorf("process %d does not have %s", pid, path)}
	for _, address := range addresses {
		content, err := getOnce(ctx, "http://"+address+path)
		if err == nil {
			return content, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// listenAddresses returns where a process takes connections by TCP over IPv4.
func listenAddresses(pid int) (addresses []string, err error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return nil, err
	}
	files, err := proc.FileDescriptorTargets()
	if err != nil {
		return nil, err
	}
	open := strings.Join(files, " ")
	kernel, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	sockets, err := kernel.NetTCP() //nolint:staticcheck // netlink, its replacement, would be a library for one table
	for _, s := range sockets {
		if s.St == listening && strings.Contains(open, fmt.Sprintf("socket:[%d]", s.Inode)) {
			addresses = append(addresses, net.JoinHostPort(s.LocalAddr.String(), strconv.FormatUint(s.LocalPort, 10)))
		}
	}
	return addresses, err
}

// oneRequest keeps no connection open, which would count as one of the process.
var oneRequest = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func getOnce(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := oneRequest.Do(request)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s", url, answer.Status)
	}
	return content, err
}
