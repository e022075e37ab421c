// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// serveVM serves a VM whose console and log are open and silent until the client leaves.
func serveVM(t *testing.T) (server string) {
	t.Helper()
	vm := kittest.NewVM(api.PhaseActive, api.ReasonRunning, metav1.ConditionTrue).Obj()
	vm.TypeMeta = metav1.TypeMeta{APIVersion: api.SchemeGroupVersion.String(), Kind: "VirtualMachine"}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/console"), strings.HasSuffix(r.URL.Path, "/exec"):
			upgrader := websocket.Upgrader{Subprotocols: []string{streamsapi.Protocol}}
			ws, err := upgrader.Upgrade(w, r, nil)
			if err != nil {
				return
			}
			if strings.HasSuffix(r.URL.Path, "/exec") {
				_ = ws.WriteMessage(websocket.BinaryMessage, []byte("\x01hello\n"))
			}
			_, _ = io.Copy(io.Discard, ws.NetConn())
		case strings.HasSuffix(r.URL.Path, "/log"):
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case strings.Contains(r.URL.Path, "/configmaps/"):
			_ = json.NewEncoder(w).Encode(corev1.ConfigMap{})
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(vm)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// runMain runs the program with a standard output, and returns its standard error and exit code.
func runMain(t *testing.T, out io.Writer, args ...string) (printed string, code int) {
	t.Helper()
	var errOut bytes.Buffer
	in, typing := io.Pipe() // an input that stays open without data
	defer func() { _ = typing.Close() }()
	all := append([]string{"kubectl-vm"}, args...)
	code = Main(t.Context(), all, genericiooptions.IOStreams{In: in, Out: out, ErrOut: &errOut})
	return errOut.String(), code
}

// TestFullOutput checks that a verb fails if its output cannot be written, and that a lasting verb ends then.
func TestFullOutput(t *testing.T) {
	t.Parallel()
	server := serveVM(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	assert.NoError(t, err)
	defer func() { _ = full.Close() }()
	for _, line := range []string{"--help", "--version", "options", "completion bash", "restart web --wait=false", "show web", "exec web -- echo hello"} {
		t.Run(line, func(t *testing.T) {
			printed, code := runMain(t, full, append(strings.Fields("--server "+server+" --kubeconfig /dev/null --namespace demo"), strings.Fields(line)...)...)
			assert.True(t, code == 1 && strings.Contains(printed, "no space left on device"), "exit code %d, and %q", code, printed)
		})
	}
}

// TestReaderHasLeft checks that a verb that follows a stream ends when the reader of its output closes the pipe.
func TestReaderHasLeft(t *testing.T) {
	t.Parallel()
	server := serveVM(t)
	for _, line := range []string{"console web", "logs -f web"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			reader, out, err := os.Pipe()
			assert.NoError(t, err)
			defer func() { _ = out.Close() }()
			assert.NoError(t, reader.Close())
			printed, code := runMain(t, out, append(strings.Fields("--server "+server+" --kubeconfig /dev/null --namespace demo"), strings.Fields(line)...)...)
			assert.True(t, code == 141 && printed == "", "exit code %d, and %q", code, printed)
		})
	}
}
