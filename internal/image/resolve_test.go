// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/test/assert"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"cloudnative.tw/drover/internal/image"
)

// TestResolve checks that a tag is resolved to the digest of what it names, an index as such, and that
// the words of a registry are not repeated.
func TestResolve(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for what, c := range map[string]struct {
		code    int      // of the answer to
		methods []string // these
		digest  string   // in place of the right one, in the answer to HEAD
		isNamed bool     // in --image-hosts
		says    string
	}{
		"a registry":            {0, nil, "", true, ""},
		"one without HEAD":      {http.StatusMethodNotAllowed, []string{http.MethodHead}, "", true, ""},
		"one that refuses":      {http.StatusUnauthorized, []string{http.MethodHead, http.MethodGet}, "", true, "the server answered 401 Unauthorized"},
		"one without the tag":   {http.StatusNotFound, []string{http.MethodHead, http.MethodGet}, "", true, "the server answered 404 Not Found"},
		"one that is not asked": {0, nil, "", false, "--image-hosts"},
		"one with sha512":       {0, []string{http.MethodHead}, "sha512:" + strings.Repeat("a", 128), true, "is not sha256: and 64 hexadecimal digits"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var isPushed atomic.Bool
			host := hostOf(push(t, func(inner http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if isPushed.Load() && strings.Contains(r.URL.Path, "/manifests/") && slices.Contains(c.methods, r.Method) {
						answerManifest(w, c.code, secret, c.digest)
						return
					}
					inner.ServeHTTP(w, r)
				})
			}))
			index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: empty.Image})
			ref, err := name.ParseReference(host + "/disks/debian:many")
			assert.NoError(t, err)
			assert.NoError(t, remote.WriteIndex(ref, index))
			isPushed.Store(true)
			want, err := index.Digest()
			assert.NoError(t, err)
			policy := image.Policy{PlainHTTP: []string{host}}
			if c.isNamed {
				policy.Hosts = []string{"127.0.0.1"}
			}
			sources, err := image.NewSources(policy)
			assert.NoError(t, err)
			got, err := sources.Resolve(t.Context(), "oci://"+ref.String())
			switch {
			case c.says == "" && (err != nil || got != want.String()):
				t.Errorf("the digest is %q, %v, want %s", got, err, want)
			case c.says != "" && (err == nil || got != "" || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), secret)):
				t.Errorf("the digest is %q, with the error %v, want %q", got, err, c.says)
			}
		})
	}
}

// answerManifest answers with a code and a text or, if there is a digest, as if a manifest had it.
func answerManifest(w http.ResponseWriter, code int, text, digest string) {
	if digest == "" {
		http.Error(w, text, code)
		return
	}
	for key, value := range map[string]string{"Docker-Content-Digest": digest, "Content-Type": string(types.OCIImageIndex), "Content-Length": "2"} {
		w.Header().Set(key, value)
	}
}
