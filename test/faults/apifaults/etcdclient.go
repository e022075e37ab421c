// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"cloudnative.tw/drover/test/framework"
)

// etcdClient calls the etcd of a cluster. The few calls that are needed are written by hand,
// so that the module does not depend on etcd.
type etcdClient struct{ http.Client }

func newEtcdClient(c *framework.Cluster) *etcdClient {
	socket := filepath.Join(c.DataDir, "run", "etcd.sock")
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	return &etcdClient{http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// compact discards all versions before a revision.
func (c *etcdClient) compact(ctx context.Context, revision uint64) error {
	return c.call(ctx, "KV/Compact", 1, revision, 2, 1) // 2: physical
}

// setFull raises or ends the alarm that etcd has when its disk quota is used up.
func (c *etcdClient) setFull(ctx context.Context, full bool) error {
	const activate, deactivate, noSpace = 1, 2, 1
	action := uint64(deactivate)
	if full {
		action = activate
	}
	return c.call(ctx, "Maintenance/Alarm", 1, action, 3, noSpace)
}

// call makes a gRPC call whose message has the given integers, each after its number.
func (c *etcdClient) call(ctx context.Context, method string, fields ...uint64) error {
	var message []byte
	for field := range slices.Chunk(fields, 2) {
		message = binary.AppendUvarint(binary.AppendUvarint(message, field[0]<<3), field[1])
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) //nolint:gosec // A few bytes.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd/etcdserverpb."+method, bytes.NewReader(frame))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	for _, at := range []http.Header{res.Trailer, res.Header} {
		if status := at.Get("Grpc-Status"); status == "0" {
			return nil
		} else if status != "" {
			return fmt.Errorf("etcd: %s: status %s: %s", method, status, at.Get("Grpc-Message"))
		}
	}
	return fmt.Errorf("etcd: %s: no status", method)
}
