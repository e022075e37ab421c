// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"cloudnative.tw/drover/internal/image/catalogue"
	"cloudnative.tw/drover/internal/image/compression"
	"cloudnative.tw/drover/internal/image/egress"
	"cloudnative.tw/drover/internal/image/layer"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/image/transfer"
)

// DefaultMaxSize is how many bytes an image may have if the operator sets no other limit.
const DefaultMaxSize = 32 << 30

// Policy says which fetches the operator allows. The zero value allows public addresses,
// and registries by TLS only.
type Policy struct {
	// Hosts are names and CIDRs of hosts that may be contacted although their addresses are
	// not public.
	Hosts []string
	// PlainHTTP are registries, as sources name them, that are contacted without TLS, and
	// without logins.
	PlainHTTP []string
	// MaxSize is how many bytes an image may have, as sent and decompressed; zero means
	// DefaultMaxSize.
	MaxSize int64
	// Catalogue is a file with names of cloud images, beside those that catalogue.Shipped has.
	Catalogue string
	// BuiltIn is the file of the image of that source, as docker save writes one.
	BuiltIn string
}

// Sources are where images are fetched from.
type Sources struct {
	client    *egress.Client
	catalogue *catalogue.Catalogue
	plainHTTP []string
	limit     transfer.Limit
	builtIn   string
}

// NewSources returns the sources that a policy allows.
func NewSources(p Policy) (*Sources, error) {
	hosts, err := egress.ParseHosts(p.Hosts)
	if err != nil {
		return nil, fmt.Errorf("--image-hosts: %w", err)
	}
	for _, registry := range p.PlainHTTP {
		if _, err := name.NewRegistry(registry, name.StrictValidation); err != nil || registry != strings.ToLower(registry) {
			return nil, fmt.Errorf("--image-plain-http-registries has %q: each must be the host of a registry in small letters, with the port if it has one, such as localhost:5000", registry)
		}
	}
	if p.MaxSize < 0 {
		return nil, fmt.Errorf("--image-max-size is %d: it must be more than 0", p.MaxSize)
	}
	if p.MaxSize == 0 {
		p.MaxSize = DefaultMaxSize
	}
	names, err := catalogue.Open(p.Catalogue)
	if err != nil {
		return nil, fmt.Errorf("--image-catalogue: %w", err)
	}
	return &Sources{client: egress.New(hosts), catalogue: names, plainHTTP: p.PlainHTTP, limit: transfer.Limit{Bytes: p.MaxSize, Option: "--image-max-size"}, builtIn: p.BuiltIn}, nil
}

// IsUnchecked reports whether the content of an image is up to the server, or to anyone
// who can change what is sent on the way. A registry is queried by digest, which over TLS
// only the registry itself can choose.
func (s *Sources) IsUnchecked(ref Ref) bool {
	switch {
	case ref.Checksum != "":
		return false
	case ref.Source.Kind == source.Web:
		return true
	case ref.Source.Kind != source.RegistryDisk && ref.Source.Kind != source.Container:
		return false // a name of the catalogue has the checksum of its publisher
	}
	parsed, err := name.ParseReference(ref.Source.Name)
	if err != nil {
		return false // nothing is fetched
	}
	_, byDigest := parsed.(name.Digest)
	return !byDigest && s.isPlainHTTP(parsed)
}

// isPlainHTTP reports whether a registry is contacted without TLS.
func (s *Sources) isPlainHTTP(ref name.Reference) bool {
	return slices.Contains(s.plainHTTP, strings.ToLower(ref.Context().RegistryStr()))
}

// platform is the platform of machines.
var platform = v1.Platform{OS: "linux", Architecture: "amd64"}

// parseReference reads the reference of an image in a registry, and returns it with the options for
// asking that registry.
func (s *Sources) parseReference(ctx context.Context, reference string, onData func()) (name.Reference, []remote.Option, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, nil, invalidContent("it is not a reference of an image: it must be registry/name:tag or registry/name@sha256:...")
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithPlatform(platform),
		remote.WithTransport(s.client.Registry(s.isPlainHTTP(ref), s.limit.Bytes, onData)),
	}
	if s.isPlainHTTP(ref) {
		// This lets the library fall back to plain HTTP. There is no login to send.
		ref, err = name.ParseReference(reference, name.Insecure)
	} else {
		options = append(options, remote.WithAuthFromKeychain(dockerLogins{}))
	}
	return ref, options, err
}

// copyOCI copies the disk in an image of a registry.
func (s *Sources) copyOCI(ctx context.Context, a *attempt) error {
	ref, options, err := s.parseReference(ctx, a.ref.Source.Name, a.progress.ResetStallTimer)
	if err != nil {
		return err
	}
	image, err := remote.Image(ref, options...)
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	sizes, err := measureLayers(image, s.limit.Bytes)
	if err != nil {
		return err
	}
	if err := a.checkContent(digest.String(), sumSizes(sizes)); err != nil {
		return err
	}
	return copyDisk(image, &a.copy, s.limit.Bytes, a.countBytes)
}

// Resolve returns the digest of an image in a registry, oci://..., as the registry has it now. For an
// image for several platforms, it is the digest of the index. The error has none of the registry's words.
func (s *Sources) Resolve(ctx context.Context, from source.Source) (digest string, err error) {
	ref, options, err := s.parseReference(ctx, from.Name, func() {})
	if err != nil {
		return "", explainError(err)
	}
	described, err := remote.Head(ref, options...)
	if err == nil {
		return checkDigest(described.Digest)
	}
	read, err := remote.Get(ref, options...) // a registry need not answer HEAD
	if err != nil {
		return "", explainError(err)
	}
	return checkDigest(read.Digest)
}

// digestPattern matches the digests that statuses and pods may have. Digests of other algorithms have
// more digits.
var digestPattern = regexp.MustCompile("^sha256:[0-9a-f]{64}$")

// IsDigest reports whether a text is a SHA-256 digest, as in sha256: and 64 hexadecimal digits in small letters.
func IsDigest(text string) bool { return digestPattern.MatchString(text) }

func checkDigest(h v1.Hash) (string, error) {
	if !IsDigest(h.String()) {
		return "", unusableContent("the registry's digest of the image is not sha256: and 64 hexadecimal digits in small letters")
	}
	return h.String(), nil
}

// dockerLogins are the logins of the Docker configuration. An error does not say why they
// cannot be read: what a helper printed may hold one.
type dockerLogins struct{}

// Resolve implements authn.Keychain.
func (dockerLogins) Resolve(target authn.Resource) (authn.Authenticator, error) {
	found, err := authn.DefaultKeychain.Resolve(target)
	if err != nil {
		return nil, egress.Errorf("the logins of registries cannot be read: config.json of the Docker configuration is broken, or a helper that it names fails")
	}
	return found, nil
}

// contentError explains why fetched content is unusable. Fetching the same content again
// changes nothing.
type contentError struct{ error }

func (c *contentError) Unwrap() error { return c.error }

// contentErrorOf returns an error about unusable content as one of this package, and others as they are.
func contentErrorOf(err error) error {
	unusable, ok := errors.AsType[*transfer.ContentError](err)
	switch {
	case !ok:
		return err
	case unusable.IsInvalid:
		return invalidContent("%w", unusable)
	}
	return unusableContent("%w", unusable)
}

// unusableContent returns an error for content that the server may change.
func unusableContent(format string, args ...any) error {
	return &contentError{newError(ErrUnavailable, format, args...)}
}

// invalidContent returns an error that only another reference, or another limit of the
// operator, can resolve.
func invalidContent(format string, args ...any) error {
	return &contentError{newError(ErrInvalid, format, args...)}
}

func tooLargeError(content string, limit int64) error {
	return invalidContent("%s %d bytes, which is all that --image-max-size allows", content, limit)
}

func errTooMuchMemory() error {
	return unusableContent("a layer of the image needs more than %d bytes of memory to be decompressed: compress it without --long or --ultra", compression.MaxMemory)
}

// explainError explains why a fetch failed, by fixed texts, without the server's answer.
func explainError(err error) error {
	content, isContent := errors.AsType[*contentError](contentErrorOf(err))
	_, isOwn := errors.AsType[*egress.Error](err)
	tooLarge, isTooLarge := errors.AsType[*layer.TooLargeError](err)
	response, isResponse := errors.AsType[*transport.Error](err)
	switch {
	case isContent:
		return content
	case isResponse && !isOwn:
		return egress.StatusError(response.StatusCode)
	case compression.IsTooMuchMemory(err):
		return errTooMuchMemory()
	case isTooLarge:
		return tooLargeError("the layers of the image have more than", tooLarge.Limit)
	}
	return egress.Explain(err)
}
