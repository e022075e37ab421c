// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
)

// TestForPod checks what is asked of the API server for a VM that is a pod, and what its refusals
// become: those of rights stay, and a machine that does not run may come back.
func TestForPod(t *testing.T) {
	t.Parallel()
	var asked string
	code := http.StatusNotFound
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		if strings.HasSuffix(r.URL.Path, "/log") {
			_, _ = io.WriteString(w, "boots")
			return
		}
		http.Error(w, "container not found", code)
	}))
	t.Cleanup(server.Close)
	c, err := ForPod(&rest.Config{Host: server.URL}, "web-1a2b3c4d")
	if err != nil {
		t.Fatal(err)
	}
	body, err := c.Get(t.Context(), "blue", "web", streams.Log, url.Values{"tailLines": {"3"}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if want := "/api/v1/namespaces/blue/pods/web-1a2b3c4d/log?container=machine&tailLines=3"; err != nil || string(text) != "boots" || asked != want {
		t.Errorf("it asked %s and read %q, %v", asked, text, err)
	}
	at := c.URL("blue", "web", streams.Console, url.Values{"stdin": {"true"}, "stdout": {"true"}, "tty": {"true"}})
	for refusal, mayReturn := range map[int]bool{http.StatusNotFound: true, http.StatusInternalServerError: true, http.StatusForbidden: false, http.StatusUnauthorized: false} {
		code = refusal
		err := c.Connect(t.Context(), at, remotecommand.StreamOptions{Stdout: io.Discard, Tty: true})
		if want := "/api/v1/namespaces/blue/pods/web-1a2b3c4d/attach?container=machine&stdin=true&stdout=true"; asked != want {
			t.Errorf("it asked %s, want %s", asked, want)
		}
		session := ConsoleSession{}
		if err == nil || apierrors.IsConflict(Cause(err)) != mayReturn || session.mayReturn(err) != mayReturn {
			t.Errorf("%d gives %v, want one after which the console may return: %t", refusal, err, mayReturn)
		}
	}
}
