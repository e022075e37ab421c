// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcdlog_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"cloudnative.tw/drover/standalone/internal/etcdlog"
	"cloudnative.tw/drover/test/assert"
)

// logEnv names the log of TestClient, which runs in a separate process.
const logEnv = "DROVER_TEST_ETCD_LOG"

// TestClient asks a server that is not an etcd. Package etcdlog itself must not import the client, which
// would then be initialised first.
func TestClient(t *testing.T) {
	path := os.Getenv(logEnv)
	if path == "" {
		t.Skip("TestLinesOfTheClient runs it")
	}
	f, err := os.Create(path)
	assert.NoError(t, err)
	etcdlog.SetOutput(f)
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "etcd.sock")) //nolint:noctx // it does not wait
	assert.NoError(t, err)
	server := grpc.NewServer()
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	config := storagebackend.Config{Transport: storagebackend.TransportConfig{ServerList: []string{"unix://" + listener.Addr().String()}}}
	check, err := factory.CreateHealthCheck(config, t.Context().Done())
	assert.NoError(t, err)
	assert.Eventually(t, "the client has logged a failure", func(t testing.TB) error {
		assert.True(t, check() != nil, "an etcd answers")
		lines, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(lines), `"logger":"etcd-client"`) {
			err = fmt.Errorf("the log has %q", lines)
		}
		return err
	})
}

// TestLinesOfTheClient checks that what kube-apiserver's client of etcd logs is in Drover's log, and not
// on the terminal.
func TestLinesOfTheClient(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClient$")
	cmd.Env = append(os.Environ(), logEnv+"="+filepath.Join(t.TempDir(), "log"))
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err)
	assert.True(t, !strings.Contains(string(out), "etcd-client"), "the terminal has %s", out)
}
