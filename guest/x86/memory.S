# memcpy and its kin, which the compiler calls and an operating system's library would bring. They use 16-byte vector
# moves throughout: `rep` instructions are slow under emulation.

    .section .text.memory, "ax"
    .global memcpy, memmove, memset, memcmp, bcmp

# void *memcpy(void *to, const void *from, size_t len), and memmove: up to 64 bytes are all loaded before any is stored;
# beyond that the copy runs away from the overlap, with the far end loaded first.
    .p2align 4
memcpy:
memmove:
    mov %rdi, %rax
    cmp $16, %rdx
    jb 3f
    movups (%rsi), %xmm0
    movups -16(%rsi,%rdx), %xmm1
    cmp $32, %rdx
    ja 1f
    movups %xmm0, (%rdi)
    movups %xmm1, -16(%rdi,%rdx)
    ret
1:  movups 16(%rsi), %xmm2
    movups -32(%rsi,%rdx), %xmm3
    cmp $64, %rdx
    ja 2f
    movups %xmm0, (%rdi)
    movups %xmm2, 16(%rdi)
    movups %xmm3, -32(%rdi,%rdx)
    movups %xmm1, -16(%rdi,%rdx)
    ret

2:  mov %rdi, %rcx
    sub %rsi, %rcx
    cmp %rdx, %rcx                      # unsigned: is `to` inside of `from..from + len`?
    jb 5f
    movups -48(%rsi,%rdx), %xmm4        # the last 64 bytes
    movups -64(%rsi,%rdx), %xmm5
    lea -64(%rdi,%rdx), %r8
4:  movups (%rsi), %xmm0
    movups 16(%rsi), %xmm2
    movups 32(%rsi), %xmm6
    movups 48(%rsi), %xmm7
    movups %xmm0, (%rdi)
    movups %xmm2, 16(%rdi)
    movups %xmm6, 32(%rdi)
    movups %xmm7, 48(%rdi)
    add $64, %rsi
    add $64, %rdi
    cmp %r8, %rdi
    jb 4b
    movups %xmm5, (%r8)
    movups %xmm4, 16(%r8)
    movups %xmm3, 32(%r8)
    movups %xmm1, 48(%r8)
    ret

5:  movups 32(%rsi), %xmm4              # the first 64 bytes
    movups 48(%rsi), %xmm5
    lea 64(%rdi), %r8
    add %rdx, %rdi
    add %rdx, %rsi
6:  movups -16(%rsi), %xmm1
    movups -32(%rsi), %xmm3
    movups -48(%rsi), %xmm6
    movups -64(%rsi), %xmm7
    movups %xmm1, -16(%rdi)
    movups %xmm3, -32(%rdi)
    movups %xmm6, -48(%rdi)
    movups %xmm7, -64(%rdi)
    sub $64, %rsi
    sub $64, %rdi
    cmp %r8, %rdi
    ja 6b
    movups %xmm0, (%rax)
    movups %xmm2, 16(%rax)
    movups %xmm4, 32(%rax)
    movups %xmm5, 48(%rax)
    ret

3:  cmp $8, %edx
    jb 7f
    mov (%rsi), %rcx
    mov -8(%rsi,%rdx), %r8
    mov %rcx, (%rdi)
    mov %r8, -8(%rdi,%rdx)
    ret
7:  cmp $4, %edx
    jb 8f
    mov (%rsi), %ecx
    mov -4(%rsi,%rdx), %r8d
    mov %ecx, (%rdi)
    mov %r8d, -4(%rdi,%rdx)
    ret
8:  test %edx, %edx
    jz 9f
    movzbl (%rsi), %ecx
    movzbl -1(%rsi,%rdx), %r8d
    mov %rdx, %r9
    shr $1, %r9
    movzbl (%rsi,%r9), %r10d
    mov %cl, (%rdi)
    mov %r10b, (%rdi,%r9)
    mov %r8b, -1(%rdi,%rdx)
9:  ret

# void *memset(void *to, int byte, size_t len)
    .p2align 4
memset:
    mov %rdi, %rax
    movzbl %sil, %esi
    movabs $0x0101010101010101, %rcx
    imul %rsi, %rcx
    cmp $16, %rdx
    jb 3f
    movq %rcx, %xmm0
    punpcklqdq %xmm0, %xmm0
    movups %xmm0, (%rdi)
    movups %xmm0, -16(%rdi,%rdx)
    cmp $32, %rdx
    jbe 9f
    movups %xmm0, 16(%rdi)
    movups %xmm0, -32(%rdi,%rdx)
    cmp $64, %rdx
    jbe 9f
    lea -64(%rdi,%rdx), %r8
4:  movups %xmm0, (%rdi)
    movups %xmm0, 16(%rdi)
    movups %xmm0, 32(%rdi)
    movups %xmm0, 48(%rdi)
    add $64, %rdi
    cmp %r8, %rdi
    jb 4b
    movups %xmm0, (%r8)
    movups %xmm0, 16(%r8)
    ret
3:  cmp $8, %edx
    jb 7f
    mov %rcx, (%rdi)
    mov %rcx, -8(%rdi,%rdx)
    ret
7:  cmp $4, %edx
    jb 8f
    mov %ecx, (%rdi)
    mov %ecx, -4(%rdi,%rdx)
    ret
8:  test %edx, %edx
    jz 9f
    mov %cl, (%rdi)
    mov %cl, -1(%rdi,%rdx)
    shr $1, %rdx
    mov %cl, (%rdi,%rdx)
9:  ret

# int memcmp(const void *a, const void *b, size_t len), and bcmp
    .p2align 4
memcmp:
bcmp:
    xor %ecx, %ecx
    sub $16, %rdx
    jb 2f
1:  movups (%rdi,%rcx), %xmm0
    movups (%rsi,%rcx), %xmm1
    pcmpeqb %xmm1, %xmm0
    pmovmskb %xmm0, %eax
    sub $0xffff, %eax
    jnz 5f
    add $16, %rcx
    cmp %rdx, %rcx
    jbe 1b
2:  add $16, %rdx                       # fewer than 16 bytes are left, from %rcx on
    sub %rcx, %rdx
    cmp $8, %rdx
    jb 3f
    mov (%rdi,%rcx), %r8
    mov (%rsi,%rcx), %r9
    add $8, %rcx
    sub $8, %rdx
    cmp %r9, %r8
    jne 6f
3:  cmp $4, %rdx
    jb 4f
    mov (%rdi,%rcx), %r8d
    mov (%rsi,%rcx), %r9d
    add $4, %rcx
    sub $4, %rdx
    cmp %r9, %r8
    jne 6f
4:  test %rdx, %rdx
    jz 7f
    movzbl (%rdi,%rcx), %eax
    movzbl (%rsi,%rcx), %r8d
    sub %r8d, %eax
    jnz 8f
    inc %rcx
    dec %rdx
    jmp 4b
5:  neg %eax                            # 0xffff - mask: its lowest set bit is the first byte that differs
    bsf %eax, %eax
    add %rax, %rcx
    movzbl (%rdi,%rcx), %eax
    movzbl (%rsi,%rcx), %ecx
    sub %ecx, %eax
    ret
6:  bswap %r8                           # as big-endian numbers they compare as their bytes do
    bswap %r9
    xor %eax, %eax
    cmp %r9, %r8
    seta %al
    sbb $0, %eax
    ret
7:  xor %eax, %eax
8:  ret
